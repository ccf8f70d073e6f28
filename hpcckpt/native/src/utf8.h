// Text for Python and TensorFlow, which take UTF-8 only: names of files, and what plugins say, may be any bytes.
#pragma once

#include <cstddef>
#include <string>

namespace hpcckpt {

// Returns how many bytes the character of UTF-8 at `p` has, or 0 if there is none.
inline std::size_t character_bytes(const unsigned char* p, std::size_t left) {
    const std::size_t n = p[0] < 0x80 ? 1 : p[0] < 0xc2 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : p[0] < 0xf5 ? 4 : 0;
    if (n == 0 || n > left) return 0;
    for (std::size_t i = 1; i < n; ++i) {
        if ((p[i] & 0xc0) != 0x80) return 0;
    }
    const bool is_overlong = (p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xf0 && p[1] < 0x90);
    const bool is_beyond = (p[0] == 0xed && p[1] >= 0xa0) || (p[0] == 0xf4 && p[1] >= 0x90);
    return is_overlong || is_beyond ? 0 : n;
}

// Returns `text` with what is no UTF-8 written as \xNN.
inline std::string as_utf8(const std::string& text) {
    static const char digits[] = "0123456789abcdef";
    const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
    std::string clean;
    for (std::size_t i = 0; i < text.size();) {
        const std::size_t n = character_bytes(bytes + i, text.size() - i);
        if (n > 0) {
            clean.append(text, i, n);
        } else {
            clean += {'\\', 'x', digits[bytes[i] >> 4], digits[bytes[i] & 15]};
        }
        i += n > 0 ? n : 1;
    }
    return clean;
}

}  // namespace hpcckpt
