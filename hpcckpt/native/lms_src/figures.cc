#include "figures.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "pool.h"

namespace hpcckpt {
namespace lms {
namespace {

using Guard = std::lock_guard<std::mutex>;

void count(std::map<std::string, Moved>& all, const std::string& name, std::int64_t nbytes, bool is_hot,
           std::int64_t wait_ns) {
    Moved& moved = all[name];
    moved.count += 1;
    moved.nbytes += nbytes;
    moved.n_hot += is_hot;
    moved.wait_ns += wait_ns;
}

std::string number(const char* key, std::int64_t value) { return quoted(key) + ":" + std::to_string(value); }

std::string table(const std::map<std::string, Moved>& all) {
    std::string text;
    for (const auto& [name, moved] : all) {
        text += (text.empty() ? "" : ",") + quoted(name) + ":[" + std::to_string(moved.count) + "," +
                std::to_string(moved.nbytes) + "," + std::to_string(moved.n_hot) + "," + std::to_string(moved.wait_ns) +
                "]";
    }
    return "{" + text + "}";
}

std::string table(const std::map<std::string, std::int64_t>& all) {
    std::string text;
    for (const auto& [name, value] : all) text += (text.empty() ? "" : ",") + number(name.c_str(), value);
    return "{" + text + "}";
}

}  // namespace

std::string quoted(const std::string& text) {
    std::string made = "\"";
    for (const char each : text) {
        if (each == '"' || each == '\\') {
            made += {'\\', each};
        } else if (static_cast<unsigned char>(each) < 0x20) {
            char code[8];
            std::snprintf(code, sizeof code, "\\u%04x", each);
            made += code;
        } else {
            made += each;
        }
    }
    return made + "\"";
}

Figures& Figures::one() {
    static Figures* const figures = new Figures;  // never destroyed: threads may count while the process ends
    return *figures;
}

void Figures::count_out(const std::string& name, std::int64_t nbytes, bool is_kept, std::int64_t wait_ns) {
    const Guard guard(lock_);
    count(outs_, name, nbytes, is_kept, wait_ns);
}

void Figures::count_in(const std::string& name, std::int64_t nbytes, bool is_hot, std::int64_t wait_ns) {
    const Guard guard(lock_);
    count(ins_, name, nbytes, is_hot, wait_ns);
}

void Figures::count_stall(const std::string& op, std::int64_t ns) {
    const Guard guard(lock_);
    stalls_[op] += ns;
}

void Figures::count_written(std::int64_t nbytes, std::int64_t ns) {
    const Guard guard(lock_);
    written_bytes_ += nbytes;
    written_ns_ += ns;
}

void Figures::count_read(std::int64_t nbytes, std::int64_t ns) {
    const Guard guard(lock_);
    read_bytes_ += nbytes;
    read_ns_ += ns;
}

void Figures::add_in_flight(std::int64_t nbytes) {
    const Guard guard(lock_);
    in_flight_ += nbytes;
    peak_in_flight_ = std::max(peak_in_flight_, in_flight_);
}

void Figures::reset() {
    const Guard guard(lock_);
    outs_.clear();
    ins_.clear();
    stalls_.clear();
    written_bytes_ = written_ns_ = read_bytes_ = read_ns_ = 0;
    HostBudget::one().reset_peak();
    peak_in_flight_ = in_flight_;
}

std::string Figures::json() {
    const Guard guard(lock_);
    const std::pair<const char*, std::int64_t> numbers[] = {{"live_handles", live_handles},
                                                            {"written_bytes", written_bytes_},
                                                            {"written_ns", written_ns_},
                                                            {"read_bytes", read_bytes_},
                                                            {"read_ns", read_ns_},
                                                            {"host_bytes", HostBudget::one().used()},
                                                            {"peak_host_bytes", HostBudget::one().peak()},
                                                            {"in_flight_bytes", in_flight_},
                                                            {"peak_in_flight_bytes", peak_in_flight_}};
    std::string text = "{";
    for (const auto& [key, value] : numbers) text += number(key, value) + ",";
    return text + "\"outs\":" + table(outs_) + ",\"ins\":" + table(ins_) + ",\"stalls\":" + table(stalls_) + "}";
}

}  // namespace lms
}  // namespace hpcckpt
