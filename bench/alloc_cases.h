// The cases of `magray-bench alloc` for other allocators: the same sizes, the same random numbers, the same traces.
// Knows no allocator itself: each program brings one, with `take`, `give_back`, `start` and `peak_reserved`.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>

namespace alloc_cases {

using Clock = std::chrono::steady_clock;

// SplitMix64 with the seed that magray uses: the blocks are the same to the byte.
class Chance {
public:
    uint64_t next() {
        uint64_t bits = state_ += 0x9E3779B97F4A7C15ull;
        bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9ull;
        bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBull;
        return bits ^ (bits >> 31);
    }

private:
    uint64_t state_ = 5;
};

struct Options {
    size_t pairs = 200000;
    // A case that takes longer ends early, with the pairs that it has.
    double seconds = 0.5;
    double fill_seconds = 5.0;
    uint64_t size_max = 256 << 10;
    std::vector<size_t> live;
    std::vector<std::string> traces;
};

inline uint64_t nanos(Clock::time_point since) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - since).count();
}

inline double seconds(Clock::time_point since) { return nanos(since) * 1e-9; }

inline uint64_t clock_ns() {
    std::vector<uint64_t> times(100000);
    for (auto& time : times) time = nanos(Clock::now());
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    return times[times.size() / 2];
}

inline std::string size_name(uint64_t bytes) {
    if (bytes % (1 << 20) == 0) return std::to_string(bytes >> 20) + " MiB";
    return std::to_string(bytes >> 10) + " KiB";
}

inline void tell_pairs(const std::string& name, std::vector<uint64_t> times) {
    if (times.empty()) return;
    std::sort(times.begin(), times.end());
    auto at = [&](size_t percent) { return times[(times.size() - 1) * percent / 100]; };
    double sum = 0;
    for (auto time : times) sum += time;
    std::printf("{\"case\":\"%s\",\"pairs\":%zu,\"p50_ns\":%llu,\"p99_ns\":%llu,\"mean_ns\":%.1f}\n", name.c_str(),
                times.size(), (unsigned long long)at(50), (unsigned long long)at(99), sum / times.size());
}

inline void tell_skipped(const std::string& name, const std::string& reason) {
    std::printf("{\"case\":\"%s\",\"skipped\":\"%s\"}\n", name.c_str(), reason.c_str());
}

template <class Allocator>
void one_size(Allocator& allocator, uint64_t bytes, const Options& options) {
    allocator.start();
    void* warm = allocator.take(bytes);
    if (!warm) return tell_skipped(size_name(bytes), "no memory");
    allocator.give_back(warm);
    std::vector<uint64_t> times;
    times.reserve(options.pairs);
    auto begun = Clock::now();
    while (times.size() < options.pairs && seconds(begun) < options.seconds) {
        auto started = Clock::now();
        void* block = allocator.take(bytes);
        allocator.give_back(block);
        times.push_back(nanos(started));
    }
    tell_pairs(size_name(bytes), std::move(times));
}

template <class Allocator>
void many_alive(Allocator& allocator, size_t count, const Options& options) {
    std::string name = std::to_string(count) + " alive, up to " + size_name(options.size_max);
    allocator.start();
    Chance chance;
    std::vector<void*> live;
    live.reserve(count + 1);
    auto give_back_all = [&] {
        for (void* block : live) allocator.give_back(block);
    };
    auto begun = Clock::now();
    while (live.size() < count) {
        void* block = allocator.take(1 + chance.next() % options.size_max);
        if (!block || seconds(begun) > options.fill_seconds) {
            if (block) live.push_back(block);
            std::string reason = block ? std::to_string(live.size()) + " blocks took longer than " +
                                             std::to_string((int)options.fill_seconds) + " s"
                                       : "no memory";
            give_back_all();
            return tell_skipped(name, reason);
        }
        live.push_back(block);
    }
    std::vector<uint64_t> times;
    times.reserve(options.pairs);
    begun = Clock::now();
    while (times.size() < options.pairs && seconds(begun) < options.seconds) {
        uint64_t bytes = 1 + chance.next() % options.size_max;
        size_t which = chance.next() % count;
        bool goes_first = chance.next() % 2 == 0;
        void* old = live[which];
        live[which] = live.back();
        live.pop_back();
        auto started = Clock::now();
        void* block;
        if (goes_first) {
            allocator.give_back(old);
            block = allocator.take(bytes);
        } else {
            block = allocator.take(bytes);
            allocator.give_back(old);
        }
        times.push_back(nanos(started));
        if (!block) break;
        live.push_back(block);
    }
    give_back_all();
    tell_pairs(name, std::move(times));
}

// Replays lines `a ID BYTES` and `f ID`.
template <class Allocator>
void replay(Allocator& allocator, const std::string& path) {
    std::string name = path.substr(path.find_last_of('/') + 1);
    std::ifstream file(path);
    allocator.start();
    std::unordered_map<std::string, std::pair<void*, uint64_t>> blocks;
    uint64_t used = 0, peak_used = 0, allocations = 0;
    std::string line, call, id;
    bool is_whole = file.good();
    while (is_whole && std::getline(file, line)) {
        std::istringstream words(line);
        if (!(words >> call >> id)) continue;
        if (call == "a") {
            uint64_t bytes = 0;
            words >> bytes;
            void* block = allocator.take(bytes);
            is_whole = block != nullptr;
            if (!is_whole) break;
            blocks[id] = {block, bytes};
            used += bytes;
            peak_used = std::max(peak_used, used);
            allocations++;
        } else {
            auto found = blocks.find(id);
            is_whole = found != blocks.end();
            if (!is_whole) break;
            allocator.give_back(found->second.first);
            used -= found->second.second;
            blocks.erase(found);
        }
    }
    uint64_t peak_reserved = allocator.peak_reserved();
    for (auto& block : blocks) allocator.give_back(block.second.first);
    if (!is_whole) return tell_skipped(name, "no such trace, a broken one, or no memory for it");
    if (peak_reserved == 0) return tell_skipped(name, "it does not tell what it reserved");
    std::printf(
        "{\"case\":\"%s\",\"allocations\":%llu,\"peak_used_bytes\":%llu,\"peak_reserved_bytes\":%llu,\"wasted\":%.6f}\n",
        name.c_str(), (unsigned long long)allocations, (unsigned long long)peak_used, (unsigned long long)peak_reserved,
        std::max(0.0, 1.0 - (double)peak_used / peak_reserved));
}

inline Options parse(int count, const char* const* words) {
    Options options;
    for (int i = 0; i + 1 < count; i += 2) {
        std::string flag = words[i], value = words[i + 1];
        if (flag == "--pairs") options.pairs = std::stoul(value);
        if (flag == "--seconds") options.seconds = std::stod(value);
        if (flag == "--fill-seconds") options.fill_seconds = std::stod(value);
        if (flag == "--size-max") options.size_max = std::stoull(value) << 10;
        if (flag == "--live") options.live.push_back(std::stoul(value));
        if (flag == "--trace") options.traces.push_back(value);
    }
    return options;
}

// All cases, a line of JSON each; traces alone if there are any.
template <class Allocator>
int run(Allocator& allocator, int count, const char* const* words) {
    Options options = parse(count, words);
    std::printf("{\"clock_ns\":%llu}\n", (unsigned long long)clock_ns());
    if (options.traces.empty()) {
        for (uint64_t kib : {64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10})
            one_size(allocator, kib << 10, options);
        for (size_t live : options.live) many_alive(allocator, live, options);
    }
    for (auto& trace : options.traces) replay(allocator, trace);
    std::fflush(stdout);
    return 0;
}

}  // namespace alloc_cases
