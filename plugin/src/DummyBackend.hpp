// Prints the address and the size of each tensor; stores nothing.
#pragma once

#include <tmci/backend.hpp>

#include <iostream>

class DummyBackend : public tmci::Backend {
   public:
    using Tensors = std::vector<std::reference_wrapper<const tensorflow::Tensor>>;

    explicit DummyBackend(const char* config) {
        std::cout << "[DUMMY] Initialization, config: " << config << std::endl;
    }

    int Save(const Tensors& tensors) override { return Print("Saving", tensors); }
    int Load(const Tensors& tensors) override { return Print("Loading", tensors); }

   private:
    static int Print(const char* what, const Tensors& tensors) {
        std::cout << "[DUMMY] " << what << ' ' << tensors.size() << " tensors:\n";
        for (const tensorflow::Tensor& tensor : tensors) {
            const auto bytes = tensor.tensor_data();
            std::cout << "  data=" << static_cast<const void*>(bytes.data()) << " size=" << bytes.size() << '\n';
        }
        std::cout << std::flush;
        return 0;
    }
};
