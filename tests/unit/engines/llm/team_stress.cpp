// usage: team_stress THREADS STAGES left|none
//
// Tiny stages in turn: one that is computed apart and then written (`sums`), one that changes its input in place
// (`rows`). Prints the final bits and how often each piece was written, so that any team can be held against one thread.
// `left`: the first thread stays in a piece of the middle stage until the others have ended the last one.
// Inputs that a late thread may still read are relaxed atomics, all else is plain: -fsanitize=thread finds nothing.
#include "team.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

constexpr int64_t width = 23;
static std::atomic<float> rows[width];
static float sums[width];
static std::atomic<int> ended{0};
static std::atomic<bool> inside{false}, idle{false};

// `left`: 0 the thread that stays, 1 another one, -1 none stays.
static void run(Team& team, int threads, int stages, int left, std::vector<std::vector<int>>& written) {
  Member me(team);
  for (int s = 0; s < stages; s++) {
    const int64_t pieces = 1 + s % width;
    const bool middle = s == stages / 4 * 2;
    while (middle && left == 1 && !inside) std::this_thread::yield();
    if (s % 2 == 0)
      me.stage(pieces, [&](int64_t i, auto claim) {
        float own[width];
        const int64_t begin = width * i / pieces, end = width * (i + 1) / pieces;
        for (int64_t e = begin; e < end; e++) {
          own[e] = 1.f;
          for (int64_t j = 0; j < width; j++) own[e] += rows[(e + j) % width].load(std::memory_order_relaxed) * (float)(j % 5);
        }
        if (middle && left == 0) inside = true;
        while (middle && left == 0 && ended < threads - 1) std::this_thread::yield();
        if (!claim()) return;
        for (int64_t e = begin; e < end; e++) sums[e] = own[e];
        written[s][i]++;
      });
    else
      me.stage(pieces, [&](int64_t i, auto claim) {
        if (i % 7 == 3) std::this_thread::yield();
        if (!claim()) return;
        for (int64_t e = width * i / pieces; e < width * (i + 1) / pieces; e++)
          rows[e].store(rows[e].load(std::memory_order_relaxed) * 0.5f + 1.f / sums[e], std::memory_order_relaxed);
        written[s][i]++;
      });
  }
  ended++;
}

int main(int, char** argv) {
  const int threads = std::atoi(argv[1]), stages = std::atoi(argv[2]);
  const bool left = !std::strcmp(argv[3], "left");
  for (int64_t e = 0; e < width; e++) rows[e] = 1.f / (float)(e + 3);
  std::vector<std::vector<int>> written(stages, std::vector<int>(width));
  Team team(width);
  std::thread neighbour([&] {
    for (unsigned long n = 0; !idle; n++)
      if (n % 4096 == 0) std::this_thread::yield();
  });
  std::vector<std::thread> others;
  for (int t = 1; t < threads; t++) others.emplace_back([&] { run(team, threads, stages, left ? 1 : -1, written); });
  run(team, threads, stages, left ? 0 : -1, written);
  for (auto& other : others) other.join();
  idle = true;
  neighbour.join();
  long once = 0, otherwise = 0;
  for (int s = 0; s < stages; s++)
    for (int64_t i = 0; i < width; i++) (written[s][i] == (i < 1 + s % width) ? once : otherwise)++;
  std::printf("%ld as often as asked, %ld not:", once, otherwise);
  for (int64_t e = 0; e < width; e++) std::printf(" %a %a", rows[e].load(), sums[e]);
  std::printf("\n");
}
