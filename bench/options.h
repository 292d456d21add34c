#pragma once
// `--key value` and `--flag`, checked against a list, so that a typing error does not become a default.
#include <stdio.h>
#include <stdlib.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace bench {

struct Option {
  std::string_view name, fallback, help;  // fallback "" and help ending in "(flag)": takes no value
};

class Options {
 public:
  Options(int argc, char** argv, std::string_view what, const std::vector<Option>& known) {
    for (const Option& o : known) values_[std::string(o.name)] = std::string(o.fallback);
    for (int i = 1; i < argc; ++i) {
      std::string_view arg = argv[i];
      const Option* found = nullptr;
      for (const Option& o : known)
        if (arg.starts_with("--") && arg.substr(2) == o.name) found = &o;
      const bool flag = found && found->help.ends_with("(flag)");
      if (!found || (!flag && i + 1 == argc)) {
        printf("%s: %.*s\n", argv[0], static_cast<int>(what.size()), what.data());
        for (const Option& o : known)
          printf("  --%-18.*s %.*s%s%.*s\n", static_cast<int>(o.name.size()), o.name.data(),
                 static_cast<int>(o.help.size()), o.help.data(), o.fallback.empty() ? "" : "; default ",
                 static_cast<int>(o.fallback.size()), o.fallback.data());
        exit(arg == "--help" ? 0 : 2);
      }
      values_[std::string(found->name)] = flag ? "1" : argv[++i];
    }
  }

  const std::string& text(const char* name) const { return values_.at(name); }
  long number(const char* name) const { return atol(text(name).c_str()); }
  double real(const char* name) const { return atof(text(name).c_str()); }

 private:
  std::map<std::string, std::string> values_;
};

}  // namespace bench
