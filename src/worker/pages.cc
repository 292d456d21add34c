#include "worker/pages.h"

#include <cstdlib>

#include "config/value.h"
#include "crypto/crypto.h"
#include "net/engine.h"
#include "observe/glance.h"
#include "observe/metrics.h"
#include "web/page.h"

namespace pgf::worker {
namespace {

using web::Request;
using web::Response;

struct Site {  // what the pages need; used in the web server's thread only
  Fleet& fleet;
  const std::string token;
  const std::string host;  // of metrics_listen
  const bool has_page;
  observe::Foremost foremost;
  observe::Glance glance = {};
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

// ---- the web page ----

// Without a token nothing but the address protects the data. A page from elsewhere whose name has been made to mean our
// address (DNS rebinding) would be let in by the browser, so names are not ours unless we were given one.
bool is_our_name(const Site& site, std::string_view host) {
  if (host.empty() || host.starts_with('[')) return true;
  host = host.substr(0, host.find(':'));
  return host == "localhost" || host == site.host || host.find_first_not_of("0123456789.") == std::string_view::npos;
}

observe::Choice choice_of(std::string_view query) {
  using Order = observe::Choice::Order;
  constexpr std::pair<std::string_view, Order> kOrders[] = {
      {"waiting", Order::waiting}, {"servers", Order::servers}, {"rate", Order::rate}, {"name", Order::name}};
  observe::Choice choice;
  const std::string order = web::query_value(query, "order").value_or("");
  for (const auto& [word, which] : kOrders)
    if (word == order) choice.order = which;
  choice.from = std::strtoull(web::query_value(query, "from").value_or("").c_str(), nullptr, 10) /
                observe::Glance::kRows * observe::Glance::kRows;
  choice.find = web::query_value(query, "find").value_or("");
  choice.database = web::query_value(query, "database").value_or("");
  choice.user = web::query_value(query, "user").value_or("");
  return choice;
}

Response the_page() {
  return {.type = "text/html; charset=utf-8",
          .body = std::string(web::kPage.html),
          .headers = fmt::format("Content-Security-Policy: {}\r\nReferrer-Policy: no-referrer\r\n"
                                 "X-Frame-Options: DENY\r\n",
                                 web::kPage.policy)};
}

// Server-sent events: a report each second.
Response events(const std::shared_ptr<Site>& site, const Request& request) {
  return {.type = "text/event-stream",
          .next = [site, choice = choice_of(request.query), settings = std::uint64_t{0}]() mutable -> std::string {
            if (!site->glance.is_fresh(net::monotonic_now())) return "";
            return fmt::format("data: {}\n\n", site->glance.json(choice, settings));
          }};
}

void refresh(const std::shared_ptr<Site>& site, std::function<void(web::Renew)> done) {
  site->fleet.to_control(
      ReportWanted{observe::Glance::kParts, [site, done](std::shared_ptr<const observe::Fleet> report) {
                     const Usec now = net::monotonic_now(), wall = net::wall_now();
                     done([site, report, now, wall] { site->glance.update(report, now, wall); });
                   }});
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

Pages pages(Fleet& fleet) {
  const config::Settings& s = fleet.config->settings;
  auto endpoint = config::parse_endpoint(s.metrics_listen);
  auto site = std::make_shared<Site>(fleet, s.metrics_token, endpoint ? endpoint->host : "", s.web_page != 0,
                                     observe::Foremost(static_cast<std::size_t>(s.metrics_max_pools)));
  web::Handler handler = [site](const Request& request, web::Answer answer) {
    const auto refuse = [&answer] {
      answer([] { return Response{.status = 401, .body = "metrics_token is wanted\n"}; });
    };
    for (const Page& page : kPages) {
      if (request.path != page.path) continue;
      if (page.secret && !may(request, site->token)) return refuse();
      return site->fleet.to_control(
          ReportWanted{page.parts, [site, &page, request, answer](std::shared_ptr<const observe::Fleet> report) {
                         answer([site, &page, request, report] { return page.make(*site, request, *report); });
                       }});
    }
    if (site->has_page && request.path == "/") return answer(the_page);
    if (site->has_page && request.path == "/events") {
      if (!may(request, site->token)) return refuse();
      if (site->token.empty() && !is_our_name(*site, request.host))
        return answer([] { return Response{.status = 421, .body = "by this name only with a metrics_token\n"}; });
      return answer([site, request] { return events(site, request); });
    }
    const std::string_view here = site->has_page ? "here are /, /events, /metrics, /livez and /readyz\n"
                                                 : "here are /metrics, /livez and /readyz\n";
    answer([here] { return Response{.status = 404, .body = std::string(here)}; });
  };
  return {std::move(handler), [site](auto done) { refresh(site, std::move(done)); }};
}

}  // namespace pgf::worker
