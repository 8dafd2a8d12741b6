// Threads that go through the same stages together, each stage cut into pieces.
//
// A stage ends when all its pieces are done, not when all threads have come: who lost the core meanwhile finds the
// stage over and skips it. A piece is computed in memory of one's own; then the one thread that claims it writes its
// results where the next stage reads them. So a piece that was left lying is computed once more by who waits for it,
// and what its first owner comes back with is dropped. Such an owner may read inputs that a later stage overwrites
// already: it must not take addresses or counts from them, and its claim is refused.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

static inline void pause_briefly() {
#ifdef __x86_64__
  __builtin_ia32_pause();
#endif
}

class Team {
 public:
  // No stage has more pieces than `most`.
  explicit Team(int64_t most) : written_(most) {}

 private:
  friend class Member;
  using Count = uint32_t;

  // A piece that nobody took yet, or -1.
  int64_t take(Count now, int64_t pieces) {
    uint64_t seen = next_.load(std::memory_order_acquire);
    while (seen >> 32 == now && (int64_t)(Count)seen < pieces)
      if (next_.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel)) return (Count)seen;
    return -1;
  }
  bool unclaimed(Count now, int64_t i) const { return written_[i].load(std::memory_order_relaxed) <= now; }
  bool claim(Count now, int64_t i) {
    Count seen = written_[i].load(std::memory_order_relaxed);
    return seen <= now && written_[i].compare_exchange_strong(seen, now + 1, std::memory_order_acq_rel);
  }
  // The last of a stage's pieces opens the next one.
  void finish(Count now, int64_t pieces) {
    if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 < pieces) return;
    done_.store(0, std::memory_order_relaxed);
    next_.store((uint64_t)(now + 1) << 32, std::memory_order_release);
    stage_.store(now + 1);
    stage_.notify_all();
  }
  bool over(Count now) const { return stage_.load(std::memory_order_acquire) != now; }

  // Each where the others' writes do not disturb it.
  alignas(64) std::atomic<uint64_t> next_{0};  // the stage, and the first of its pieces that nobody took
  alignas(64) std::atomic<int64_t> done_{0};   // pieces of the stage
  alignas(64) std::atomic<Count> stage_{0};
  std::vector<std::atomic<Count>> written_;  // by piece: 1 + the last stage in which it was claimed
};

// One thread of a team. All members go through the same stages in the same order.
class Member {
 public:
  explicit Member(Team& team) : team_(team) {}

  // piece(i, claim) computes piece i; what others read it writes only after claim() has returned true. A piece that
  // changes its own input claims first.
  template <typename Piece>
  void stage(int64_t pieces, Piece piece) {
    if (!pieces) return;
    const Team::Count now = at_++;
    Clock::duration longest = brief;
    for (int64_t i; (i = team_.take(now, pieces)) >= 0;) {
      const auto began = Clock::now();
      attempt(now, i, pieces, piece);
      longest = std::max(longest, Clock::now() - began);
    }
    // A piece that takes so much longer than ours has lost its core.
    if (comes(now, longest)) return;
    for (int64_t i = 0; i < pieces && !team_.over(now); i++)
      if (team_.unclaimed(now, i)) attempt(now, i, pieces, piece);
    if (!comes(now, awake)) team_.stage_.wait(now);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr Clock::duration brief = std::chrono::microseconds(15);
  // A team that sleeps at once spends a decode step of 20 ms waking up, one that stays awake takes the cores from
  // whoever else needs them.
  static constexpr Clock::duration awake = std::chrono::microseconds(40);

  template <typename Piece>
  void attempt(Team::Count now, int64_t i, int64_t pieces, Piece& piece) {
    bool mine = false;
    piece(i, [&] { return mine = team_.claim(now, i); });
    if (mine) team_.finish(now, pieces);
  }
  // Whether the stage ends within `limit`.
  bool comes(Team::Count now, Clock::duration limit) const {
    if (team_.over(now)) return true;
    for (const auto until = Clock::now() + limit; Clock::now() < until;)
      for (int i = 0; i < 16; i++) {
        pause_briefly();
        if (team_.over(now)) return true;
      }
    return false;
  }

  Team& team_;
  Team::Count at_ = 0;
};
