#include "worker/pages.h"

#include <map>

#include "crypto/crypto.h"
#include "net/engine.h"
#include "observe/metrics.h"

namespace pgf::worker {
namespace {

using web::Request;
using web::Response;

struct Site {  // what the pages need; used in the web server's thread only
  Fleet& fleet;
  const std::string token;
  observe::Foremost foremost;
};

Response metrics(Site& site, const Request& request, const observe::Fleet& report) {
  if (request.accept.find("application/openmetrics-text") != std::string::npos)
    return {200, "application/openmetrics-text; version=1.0.0; charset=utf-8",
            observe::metrics(report, observe::Exposition::openmetrics, site.foremost)};
  return {200, "text/plain; version=0.0.4; charset=utf-8",
          observe::metrics(report, observe::Exposition::prometheus, site.foremost)};
}

// That there is an answer at all says that the control thread and every worker still turn.
Response alive(Site&, const Request&, const observe::Fleet&) { return {.body = "ok\n"}; }

// One database that works is enough. Hosts that are out are asked whether they are back as long as somebody wants them:
// if nobody may come because we are not ready, that is us. A name that means nothing is looked up by the next client.
bool has_usable_host(Site& site, const observe::Fleet& report) {
  for (const observe::HostRow& h : report.hosts)
    if (h.state != "out" || (h.address.empty() && h.next_try == 0)) return true;
  pool::Hosts& hosts = site.fleet.shared.hosts;
  for (const observe::HostRow& h : report.hosts)
    if (!h.address.empty()) hosts.admit(*hosts.address(h.address), net::monotonic_now());
  return report.hosts.empty();
}

Response ready(Site& site, const Request&, const observe::Fleet& report) {
  if (report.ending) return {.status = 503, .body = "shutting down\n"};
  if (report.suspended) return {.status = 503, .body = "suspended\n"};
  if (report.paused) return {.status = 503, .body = "paused\n"};
  if (!has_usable_host(site, report)) return {.status = 503, .body = "no usable host\n"};
  return {.body = "ok\n"};
}

struct Page {
  std::string_view path;
  unsigned parts;  // of observe::Gather
  bool secret;     // asks for metrics_token
  Response (*make)(Site&, const Request&, const observe::Fleet&);
};

constexpr Page kPages[] = {{"/metrics", observe::kMetricsParts, true, metrics},
                           {"/livez", observe::kNothing, false, alive},
                           {"/readyz", observe::kHosts, false, ready}};

bool may(const Request& request, const std::string& token) {
  return token.empty() || crypto::equal_constant_time(as_bytes(request.authorization), as_bytes("Bearer " + token));
}

}  // namespace

web::Handler pages(Fleet& fleet) {
  const config::Settings& s = fleet.config->settings;
  auto site =
      std::make_shared<Site>(fleet, s.metrics_token, observe::Foremost(static_cast<std::size_t>(s.metrics_max_pools)));
  return [site](const Request& request, web::Answer answer) {
    for (const Page& page : kPages) {
      if (request.path != page.path) continue;
      if (page.secret && !may(request, site->token))
        return answer([] { return Response{.status = 401, .body = "metrics_token is wanted\n"}; });
      return site->fleet.to_control(
          ReportWanted{page.parts, [site, &page, request, answer](std::shared_ptr<const observe::Fleet> report) {
                         answer([site, &page, request, report] { return page.make(*site, request, *report); });
                       }});
    }
    answer([] { return Response{.status = 404, .body = "here are /metrics, /livez and /readyz\n"}; });
  };
}

}  // namespace pgf::worker
