#include "main/options.h"

#include <getopt.h>

#include <cstdio>

#include "base/version.h"
#include "net/dns_channel.h"

namespace pgf {

static constexpr const char* kUsage =
    "Usage: pgflotilla [OPTION]... CONFIG.INI\n"
    "       pgflotilla top [OPTION]... [CONNECTION STRING | CONFIG.INI]\n"
    "A PostgreSQL connection pooler for every core, with PgBouncer's configuration and console.\n"
    "\n"
    "  -d, --daemon         run in the background (needs pidfile)\n"
    "  -q, --quiet          no log on stderr\n"
    "  -R, --reboot         take over the sockets of the process that runs now, and end it\n"
    "  -u, --user=NAME      run as this operating-system user\n"
    "  -v, --verbose        more log; may be repeated\n"
    "      --check          say what is wrong with CONFIG.INI and what it would start; start nothing\n"
    "  -V, --version        print the version and end\n"
    "  -h, --help           print this and end\n";

std::expected<Options, int> parse_options(int argc, char** argv) {
  static const option kLong[] = {{"daemon", no_argument, nullptr, 'd'},
                                 {"quiet", no_argument, nullptr, 'q'},
                                 {"reboot", no_argument, nullptr, 'R'},
                                 {"user", required_argument, nullptr, 'u'},
                                 {"verbose", no_argument, nullptr, 'v'},
                                 {"version", no_argument, nullptr, 'V'},
                                 {"help", no_argument, nullptr, 'h'},
                                 {"check", no_argument, nullptr, 'C'},
                                 {nullptr, 0, nullptr, 0}};
  Options o;
  for (int c; (c = getopt_long(argc, argv, "dqRu:vVh", kLong, nullptr)) != -1;) {
    switch (c) {
      case 'd':
        o.daemon = true;
        break;
      case 'C':
        o.check = true;
        break;
      case 'q':
        o.quiet = true;
        break;
      case 'R':
        o.reboot = true;
        break;
      case 'u':
        o.user = optarg;
        break;
      case 'v':
        ++o.verbose;
        break;
      case 'V':
        std::printf("PgBouncer %s\npgflotilla %s\nadns: %s\n", kPgBouncerVersion.data(), PGF_VERSION,
                    net::dns_library());
        return std::unexpected(0);
      case 'h':
        std::fputs(kUsage, stdout);
        return std::unexpected(0);
      default:
        std::fputs(kUsage, stderr);
        return std::unexpected(1);
    }
  }
  if (optind >= argc) {
    std::fputs("no configuration file specified\n", stderr);
    return std::unexpected(1);
  }
  if (optind + 1 < argc) {
    std::fputs("exactly one configuration file is expected\n", stderr);
    return std::unexpected(1);
  }
  o.config = argv[optind];
  return o;
}

}  // namespace pgf
