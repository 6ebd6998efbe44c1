// The runner walks the kernels of a phase.
//
// Kernels share out their work by orphaned `omp for` and `omp single`, whose closing barriers keep one kernel's stores
// before the next kernel's loads; a kernel must not end without one. A phase is cut into sections. A shared section is
// one parallel region, in which every thread calls every kernel. The kernels of the others do little: the calling thread
// runs them outside of a region, where the same code is that of a team of one, and waits for nobody.
//
// Threads may be woken on a core where another one of the team runs, while other cores are idle: a processor that sleeps
// looks to Linux as if the host had taken it away, and only the next balancing, milliseconds later, mends it. So each
// thread notes at each step on which core it is. Who finds that another one has been there in this step goes to a free
// core: it takes the cores that are in use out of its own mask, which moves it at once, and puts the mask back.
// Nobody is bound, and whatever is started meanwhile has the mask that the user gave.
//
// Beside other busy programs, a team waits at each barrier for the thread that is not running. If that costs more than
// several threads gain, phases that take less than a few time slices run on one thread for a while.
//
// A C++ program with phases of its own includes this file and says in which namespace: all of it is in there then, and
// only that program sees it.

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <ctime>
#include <limits>
#include <new>
#include <omp.h>

#ifdef __linux__
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>
#endif

#ifdef SWIRL_INSIDE
#define SWIRL_CALLED [[maybe_unused]] static
#else
#define SWIRL_INSIDE swirl_runner
#define SWIRL_CALLED extern "C"
#endif

namespace SWIRL_INSIDE {

namespace {

// All in seconds.
constexpr double LONG_STEP = 100e-6;  // after which threads that waited may sleep
constexpr double ARRIVING = 1e-6;     // in which those that are awake begin a step
constexpr double LATE = 300e-6;       // more than waking up takes
constexpr double SLOW_MOVE = 1e-3;    // where another program has the core
constexpr double FIRST_REST = 10e-3, LONGEST_REST = 1.0;  // between moves that do not help
constexpr double SHORT = 4e-3;        // a phase on one thread: about as long as it may wait for a core
constexpr double FIRST_HOLD = 20e-3, LONGEST_HOLD = 5.0;  // of phases on one thread
constexpr double WORTH = 0.5;         // of the time of another thread, as sharing is not perfect
constexpr double FRESH = 1e-3;        // of a count of lost cores
constexpr int YIELDS = 2;
constexpr int STEP_BITS = 24;

double now() {
    timespec found;
    clock_gettime(CLOCK_MONOTONIC, &found);
    return static_cast<double>(found.tv_sec) + 1e-9 * static_cast<double>(found.tv_nsec);
}

void relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

// How often this thread has lost its core to another one.
long lost_cores() {
#ifdef __linux__
    rusage used;
    return getrusage(RUSAGE_THREAD, &used) == 0 ? used.ru_nivcsw : 0;
#else
    return 0;
#endif
}

int this_core() {
#ifdef __linux__
    return sched_getcpu();
#else
    return -1;
#endif
}

}  // namespace

// A number with a cache line of its own.
struct Line {
    std::atomic<long> value;
    char rest[64 - sizeof(std::atomic<long>)];
};

namespace {

Line* lines(long count) {
    void* made = nullptr;
    if (posix_memalign(&made, 64, static_cast<std::size_t>(count) * sizeof(Line)) != 0) {
        return nullptr;
    }
    for (long i = 0; i < count; ++i) {
        new (static_cast<Line*>(made) + i) Line{{-1}, {}};
    }
    return static_cast<Line*>(made);
}

// What a thread knows of itself.
struct Watch {
    long lost = 0;
    double at = 0;

    void look(double time) {
        lost = lost_cores();
        at = time;
    }
};

thread_local Watch watch;

}  // namespace

struct Step {
    void (*kernel)(void* const* buffers);
    void* const* buffers;
};

// An entry of a pointer table whose memory comes with each run.
struct Place {
    void** entry;
    long base;
    long offset;  // bytes
};

struct Section {
    long count;   // steps
    long shared;  // whether all threads run them
};

struct Phase {
    const Step* steps;
    const Section* sections;
    long count;    // sections
    double usual;  // seconds on all threads; 0 before it is known
};

// What has happened so far; read by the tests and by the benchmarks.
struct Seen {
    long regions;  // parallel regions
    long shared;   // of these, in which two threads were on one core
    long moves;    // of threads to other cores
    long alone;    // phases on one thread, as the machine was busy
};

// Whether short phases run on one thread, as the machine is busy with something else.
struct Crowd {
    std::atomic<double> until{0};
    double hold = 0;
    double ran = 0;  // in phases that were not delayed, since the last one that was

    bool holds(double time) const { return time < until.load(std::memory_order_relaxed); }

    // At a time, a phase took so much longer than usual, as a thread had lost its core. On one thread, the phases before
    // it would have taken longer, too: by up to what they took, for each other thread.
    void delayed(double delay, double time, int threads) {
        if (delay < WORTH * (threads - 1) * ran) {
            hold = 0;
        } else {
            // One delay may be the host's: only those that follow each other hold for long.
            hold = std::min(std::max(2 * hold, std::max(FIRST_HOLD, delay)), LONGEST_HOLD);
            until.store(time + hold, std::memory_order_relaxed);
        }
        ran = 0;
    }
};

// The threads that one caller runs phases with.
struct Team {
    int threads;
    bool watches;  // whether each thread can have a core
    bool moves;    // whether they may be moved
    long cores;
    Line* last_on;  // core → the last step that a thread has begun there
    Line* begun;    // thread → the last step that it has begun
    std::atomic<long> regions{0}, shared{0}, moved{0}, alone{0};
    std::atomic<long> last_shared{-1};
    std::atomic<double> rests{0};  // until then nobody moves
    std::atomic<double> rest{0};   // for how long
    std::atomic<bool> lost{false};  // whether a thread has lost its core, or came late
    Crowd crowd;

    // A thread begins a step.
    void begin(int thread, long step) {
        if (arrives(step)) {
            meets(step);
        }
        begun[thread].value.store(step, std::memory_order_release);
    }

    // The first thread waits until the others have begun a step, too, if they are awake. One that has been woken on this
    // core gets it for a moment, and moves.
    void let_others_begin(long step, int members) {
        const double start = now();
        if (!moves || start < rests.load(std::memory_order_relaxed)) {
            return;
        }
        while (!all_begun(step, members)) {
            if (now() - start < ARRIVING) {
                relax();
                continue;
            }
            give_way(step, members);
            return;
        }
    }

  private:
    // Whether another thread is on this core in this step.
    bool arrives(long step) {
        const int core = this_core();
        return core >= 0 && core < cores && last_on[core].value.exchange(step, std::memory_order_relaxed) == step;
    }

    bool all_begun(long step, int members) const {
        for (int thread = 1; thread < members; ++thread) {
            if (begun[thread].value.load(std::memory_order_acquire) < step) {
                return false;
            }
        }
        return true;
    }

    void give_way(long step, int members) {
#ifdef __linux__
        const double start = now();
        for (int i = 0; i < YIELDS && !all_begun(step, members); ++i) {
            sched_yield();
        }
        const double stop = now();
        watch.look(stop);  // a core that is given away is not lost
        if (stop - start > SLOW_MOVE) {  // another program has taken it
            rests_after(false);
        }
#endif
    }

    // Moving has helped, or not: then nobody moves for a while.
    void rests_after(bool helped) {
        const double last = rest.load(std::memory_order_relaxed);
        const double next = helped ? 0 : std::min(std::max(2 * last, FIRST_REST), LONGEST_REST);
        rest.store(next, std::memory_order_relaxed);
        rests.store(helped ? 0 : now() + next, std::memory_order_relaxed);
    }

    void meets(long step) {
        const long region = step >> STEP_BITS;
        if (last_shared.exchange(region, std::memory_order_relaxed) != region) {
            shared.fetch_add(1, std::memory_order_relaxed);
        }
        const double start = now();
        if (moves && start >= rests.load(std::memory_order_relaxed)) {
            const bool moved_away = move(step);
            const double stop = now();
            rests_after(moved_away && stop - start < SLOW_MOVE);
            watch.look(stop);
        }
    }

    // Whether this thread got to another core.
    bool move(long step) {
#ifdef __linux__
        cpu_set_t own, free;
        if (sched_getaffinity(0, sizeof own, &own) != 0 || CPU_COUNT(&own) < threads) {
            return false;
        }
        free = own;
        for (int core = 0; core < CPU_SETSIZE && core < cores; ++core) {
            if (last_on[core].value.load(std::memory_order_relaxed) >> STEP_BITS == step >> STEP_BITS) {
                CPU_CLR(core, &free);
            }
        }
        if (CPU_COUNT(&free) == 0 || sched_setaffinity(0, sizeof free, &free) != 0) {
            return false;
        }
        cpu_set_t found;
        // Unless somebody else has changed it meanwhile.
        if (sched_getaffinity(0, sizeof found, &found) == 0 && CPU_EQUAL(&found, &free)) {
            sched_setaffinity(0, sizeof own, &own);
        }
        arrives(step);
        moved.fetch_add(1, std::memory_order_relaxed);
        return true;
#else
        return false;
#endif
    }
};

namespace {

void run_alone(const Step* steps, long count, double* seconds) {
    for (long i = 0; i < count; ++i) {
        const double start = seconds != nullptr ? now() : 0;
        steps[i].kernel(steps[i].buffers);
        if (seconds != nullptr) {
            seconds[i] = now() - start;
        }
    }
}

// Timing costs one barrier a step. A step lasts from when the first thread begins to when the first has left the kernel,
// whose closing barrier says that all is done: which thread the system lets wait at a barrier does not matter.
void run_timed(const Step& step, double& seconds, double& start, double& stop) {
#pragma omp master
    start = stop = std::numeric_limits<double>::infinity();
#pragma omp barrier
    const double begun = now();
    step.kernel(step.buffers);
    const double done = now();
#pragma omp critical
    {
        start = std::min(start, begun);
        stop = std::min(stop, done);
    }
#pragma omp barrier
#pragma omp master
    seconds = stop - start;
}

void run_together(Team& team, const Step* steps, long count, double* seconds) {
    double start = 0, stop = 0;
    const double opened = now();
    const long first = team.regions.fetch_add(1, std::memory_order_relaxed) << STEP_BITS;
    if (team.watches) {
        team.begin(0, first);
    }
#pragma omp parallel num_threads(team.threads)
    {
        const int thread = omp_get_thread_num(), members = omp_get_num_threads();  // may be fewer than asked for
        Watch& own = watch;
        double last = opened;
        if (team.watches) {
            const double time = now();
            if (time - own.at > FRESH) {
                own.look(time);
            }
            if (thread == 0) {
                team.let_others_begin(first, members);
            } else {
                team.begin(thread, first);
                if (time - opened > LATE) {
                    team.lost.store(true, std::memory_order_relaxed);
                }
            }
        }
        for (long i = 0; i < count; ++i) {
            if (team.watches && i > 0) {
                const double time = thread == 0 ? now() : 0;
                team.begin(thread, first + i);
                if (thread == 0 && time - last > LONG_STEP) {
                    team.let_others_begin(first + i, members);
                }
                last = time;
            }
            if (seconds == nullptr) {
                steps[i].kernel(steps[i].buffers);
            } else {
                run_timed(steps[i], seconds[i], start, stop);
            }
        }
        if (team.watches && now() - opened > LATE) {
            const long before = own.lost;
            own.look(now());
            if (own.lost != before) {
                team.lost.store(true, std::memory_order_relaxed);
            }
        }
    }
}

// What a phase takes, and whether the team has had to wait for a core.
void learn(Team& team, Phase& phase, double start, double stop) {
    const double taken = stop - start;
    const bool lost = team.lost.exchange(false, std::memory_order_relaxed);
    if (phase.usual <= 0) {
        phase.usual = taken;
        return;
    }
    if (phase.usual * team.threads < SHORT) {
        if (lost && taken > 2 * phase.usual + LATE) {
            team.crowd.delayed(taken - phase.usual, stop, team.threads);
        } else {
            team.crowd.ran += taken;
        }
    }
    // Delays count little.
    phase.usual += taken < phase.usual ? (taken - phase.usual) / 4 : (std::min(taken, 2 * phase.usual) - phase.usual) / 16;
}

}  // namespace

// moves: whether threads that share a core may be moved. Null if there is no memory.
SWIRL_CALLED Team* swirl_team(int threads, int moves) {
    Team* team = static_cast<Team*>(std::calloc(1, sizeof(Team)));
    if (team == nullptr) {
        return nullptr;
    }
    new (team) Team;
    team->threads = threads;
#ifdef __linux__
    cpu_set_t own;
    team->cores = std::max(sysconf(_SC_NPROCESSORS_CONF), 1L);
    team->watches = threads > 1 && sched_getaffinity(0, sizeof own, &own) == 0 && CPU_COUNT(&own) >= threads;
#else
    team->cores = 1;
    team->watches = false;
#endif
    team->moves = team->watches && moves != 0;
    team->last_on = lines(team->cores);
    team->begun = lines(threads);
    team->watches = team->watches && team->last_on != nullptr && team->begun != nullptr;
    return team;
}

SWIRL_CALLED void swirl_team_ends(Team* team) {
    std::free(team->last_on);
    std::free(team->begun);
    std::free(team);
}

// seconds: one number a step, or null.
SWIRL_CALLED void swirl_run(Team* team, Phase* phase, double* seconds) {
    const double begun = now();
    bool alone = team->threads == 1, shared = false;
    if (!alone && seconds == nullptr && phase->usual > 0 && phase->usual * team->threads < SHORT) {
        alone = team->crowd.holds(begun);
        team->alone.fetch_add(alone, std::memory_order_relaxed);
    }
    const Step* steps = phase->steps;
    for (long i = 0; i < phase->count; ++i) {
        const Section& section = phase->sections[i];
        if (alone || !section.shared) {
            run_alone(steps, section.count, seconds);
        } else {
            run_together(*team, steps, section.count, seconds);
            shared = true;
        }
        steps += section.count;
        seconds = seconds != nullptr ? seconds + section.count : nullptr;
    }
    if (shared && seconds == nullptr) {
        learn(*team, *phase, begun, now());
    }
}

// The same with other memory: bases are what the places count from.
SWIRL_CALLED void swirl_run_at(Team* team, Phase* phase, const Place* places, long count, char* const* bases) {
    for (long i = 0; i < count; ++i) {
        *places[i].entry = bases[places[i].base] + places[i].offset;
    }
    swirl_run(team, phase, nullptr);
}

SWIRL_CALLED void swirl_seen(const Team* team, Seen* seen) {
    seen->regions = team->regions;
    seen->shared = team->shared;
    seen->moves = team->moved;
    seen->alone = team->alone;
}

// For tests: a phase ends with a delay at a time, after others have run; whether short phases run on one thread then.
SWIRL_CALLED void swirl_delayed(Team* team, double ran, double delay, double time) {
    team->crowd.ran += ran;
    team->crowd.delayed(delay, time, team->threads);
}

SWIRL_CALLED int swirl_holds(const Team* team, double time) {
    return team->crowd.holds(time);
}

// Writes the zeros that fresh pages hold anyway, so that they exist, each near the thread that will use it.
SWIRL_CALLED void swirl_touch(char* start, long bytes, int threads) {
    const long page = 4096;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long offset = 0; offset < bytes; offset += page) {
        *static_cast<volatile char*>(start + offset) = 0;
    }
}

}  // namespace SWIRL_INSIDE
