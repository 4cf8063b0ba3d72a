// How many threads a session has. Its runtime does not say: a session's kernels count how many run at once, now and then.
// Until they are sure, they take as many as the process may use: work that is divided too often costs little, work that is
// not divided at all costs a core.
#pragma once
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "ort_abi.h"

namespace onnxfuse {
namespace {

const int64_t kWake = 3000000;  // nanoseconds in which a sleeping thread wakes up, and between the first two censuses
const int kSure = 8;            // censuses, each after twice the time of the one before, that may be believed together
const int kLongest = 16;        // doublings of that time
const uint64_t kSkipped = 16;   // calls between two looks at the clock
const int kVerbose = 0;         // severity of what the runtime logs

// Whose kernels share threads: known by its logger, of which each session has one.
struct Session {
  const ort::Logger* logger;
  int users;                    // instances of kernels
  std::atomic<int> seen;        // threads that ran at once, at most
  std::atomic<int> times;       // that they were counted
  std::atomic<int64_t> due;     // when they are counted again, in nanoseconds
  std::atomic<uint64_t> calls;  // of kernels
  std::atomic<bool> counting;
  Session* next;
};

struct Sessions {
  std::atomic_flag busy = ATOMIC_FLAG_INIT;
  Session* first = nullptr;

  void lock() {
    while (busy.test_and_set(std::memory_order_acquire)) {
    }
  }
  void unlock() { busy.clear(std::memory_order_release); }
};
Sessions sessions;

// The session of a kernel's logger, with one more user; null without memory.
inline Session* join(const ort::Logger* logger) {
  sessions.lock();
  Session* at = sessions.first;
  while (at && at->logger != logger) at = at->next;
  if (!at && (at = static_cast<Session*>(calloc(1, sizeof(Session))))) {
    at->logger = logger;
    at->next = sessions.first;
    sessions.first = at;
  }
  if (at) ++at->users;
  sessions.unlock();
  return at;
}

inline void leave(Session* session) {
  if (!session) return;
  sessions.lock();
  if (--session->users == 0) {
    Session** at = &sessions.first;
    while (*at != session) at = &(*at)->next;
    *at = session->next;
    free(session);
  }
  sessions.unlock();
}

inline int64_t nanoseconds() {
  timespec now;
#if defined(_WIN32)
  timespec_get(&now, TIME_UTC);
#else
  clock_gettime(CLOCK_MONOTONIC, &now);
#endif
  return int64_t(now.tv_sec) * 1000000000 + now.tv_nsec;
}

// A task of each thread that there may be waits for the others, as long as they may take to wake up.
struct Census {
  int expected;
  int64_t end;  // in nanoseconds
  std::atomic<int> present;
  std::atomic<bool> over;

  static void appear(void* user, size_t) {
    Census* census = static_cast<Census*>(user);
    if (census->over.load(std::memory_order_relaxed)) return;
    census->present.fetch_add(1, std::memory_order_relaxed);
    while (census->present.load(std::memory_order_relaxed) < census->expected && !census->over.load(std::memory_order_relaxed))
      if (nanoseconds() > census->end) break;
    census->over.store(true, std::memory_order_relaxed);
  }
};

inline void log_threads(ort::Api api, const ort::Logger* logger, int seen, int cores) {
  char text[96];
  snprintf(text, sizeof(text), "onnxfuse: counted %d threads of this session, of at most %d", seen, cores);
  const ort::PathChar file[] = {0};
  if (ort::Status* failed = ort::LogMessage(api)(logger, kVerbose, text, file, 0, "")) ort::ReleaseStatus(api)(failed);
}

inline void count_threads(Session* session, ort::Api api, const ort::KernelContext* context, int cores) {
  const int64_t now = nanoseconds();
  if (now < session->due.load(std::memory_order_relaxed) || session->counting.exchange(true, std::memory_order_acquire)) return;
  Census census{cores, now + kWake, {0}, {false}};
  ort::Status* failed = ort::ParallelFor(api)(context, Census::appear, size_t(cores), 0, &census);
  if (failed) ort::ReleaseStatus(api)(failed);
  const int present = census.present.load(std::memory_order_relaxed);
  if (present > session->seen.load(std::memory_order_relaxed)) session->seen.store(present, std::memory_order_relaxed);
  const int times = session->times.fetch_add(1, std::memory_order_relaxed) + 1;
  session->due.store(now + (kWake << (times < kLongest ? times : kLongest)), std::memory_order_relaxed);
  log_threads(api, session->logger, present, cores);
  session->counting.store(false, std::memory_order_release);
}

// Threads that a call's work is divided among, at most `cores`.
inline int threads_of(Session* session, ort::Api api, const ort::KernelContext* context, int cores) {
  if (!session || cores == 1) return cores;
  if (session->seen.load(std::memory_order_relaxed) >= cores) return cores;
  if (session->calls.fetch_add(1, std::memory_order_relaxed) % kSkipped == 0) count_threads(session, api, context, cores);
  const int seen = session->seen.load(std::memory_order_relaxed);
  return session->times.load(std::memory_order_relaxed) < kSure || seen < 1 ? cores : seen;
}

}  // namespace
}  // namespace onnxfuse
