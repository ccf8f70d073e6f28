// dummy: prints where tensors are and how large, as the plugin of this name in TMCI does. Nothing is stored.
#pragma once

#include <hpcckpt/backend.hpp>

#include <iostream>
#include <sstream>

class DummyBackend : public hpcckpt::Backend {
   public:
    static constexpr std::uint32_t kFeatures = 0;

    explicit DummyBackend(const char* config) {
        std::cout << "[DUMMY] Initialization, config: " << config << std::endl;
    }

    int Save(const hpcckpt::Context& context) override { return Print("Saving", context); }
    int Load(const hpcckpt::Context& context) override { return Print("Loading", context); }

   private:
    // In one piece, so that the lines of two threads do not mix.
    static int Print(const char* what, const hpcckpt::Context& context) {
        std::ostringstream lines;
        lines << "[DUMMY] " << what << ' ' << context.tensors().size() << " tensors:\n";
        for (const hpcckpt::Tensor& tensor : context.tensors()) {
            lines << "  data=" << tensor.data() << " size=" << tensor.nbytes() << '\n';
        }
        std::cout << lines.str() << std::flush;
        return 0;
    }
};
