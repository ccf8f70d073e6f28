#include "plan_text.h"

#include <cstdlib>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace hpcckpt {
namespace lms {
namespace {

// The fields of one line, in order; a line that is too short gives empty fields and is not `good`.
class Words {
   public:
    explicit Words(std::string_view line) : left_(line), is_over_(line.empty()) {}

    std::string text() {
        if (is_over_) is_good_ = false;
        const std::size_t tab = left_.find('\t');
        const std::string word(left_.substr(0, tab));
        is_over_ = tab == std::string_view::npos;
        left_ = is_over_ ? std::string_view() : left_.substr(tab + 1);
        return word;
    }
    int number() {
        const std::string word = text();
        char* end = nullptr;
        const long value = std::strtol(word.c_str(), &end, 10);
        if (word.empty() || *end != '\0' || value < 0) is_good_ = false;
        return static_cast<int>(value);
    }
    Place place() {
        Place made;
        made.op = text();
        made.number = number();
        return made;
    }
    bool is_over() const { return is_over_ || !is_good_; }
    bool is_good() const { return is_good_; }

   private:
    std::string_view left_;
    bool is_over_, is_good_ = true;
};

PlannedOut read_out(Words& words) {
    PlannedOut made;
    made.name = words.text();
    made.tensor = words.place();
    return made;
}

PlannedIn read_in(Words& words) {
    PlannedIn made;
    made.name = words.text();
    made.swap_out = words.text();
    while (!words.is_over()) made.consumers.push_back(words.place());
    return made;
}

PlannedCopy read_copy(Words& words) {
    PlannedCopy made;
    made.name = words.text();
    made.op = words.text();
    const int n = words.number();
    for (int i = 0; i < n && words.is_good(); ++i) made.inputs.push_back(words.place());
    while (!words.is_over()) {
        const int output = words.number();
        made.consumers.push_back({output, words.place()});
    }
    return made;
}

PlannedRelease read_release(Words& words) {
    PlannedRelease made;
    made.name = words.text();
    made.tensor = words.place();
    return made;
}

PlannedEdge read_edge(Words& words) {
    PlannedEdge made;
    made.first = words.text();
    made.then = words.text();
    return made;
}

bool read_line(std::string_view line, WrittenPlan* plan) {
    Words words(line);
    const std::string kind = words.text();
    if (kind == "out") {
        plan->outs.push_back(read_out(words));
    } else if (kind == "in") {
        plan->ins.push_back(read_in(words));
    } else if (kind == "copy") {
        plan->copies.push_back(read_copy(words));
    } else if (kind == "release") {
        plan->releases.push_back(read_release(words));
    } else if (kind == "edge") {
        plan->edges.push_back(read_edge(words));
    } else {
        return false;
    }
    return words.is_good();
}

}  // namespace

absl::Status read_plan(const std::string& text, WrittenPlan* plan) {
    for (std::size_t start = 0; start < text.size();) {
        const std::size_t end = std::min(text.find('\n', start), text.size());
        const std::string_view line(text.data() + start, end - start);
        if (!line.empty() && !read_line(line, plan)) {
            return absl::InvalidArgumentError(
                absl::StrCat("a line of the plan cannot be read: '", std::string(line), "'"));
        }
        start = end + 1;
    }
    return absl::OkStatus();
}

}  // namespace lms
}  // namespace hpcckpt
