#include <security/pam_appl.h>

#include <cstdlib>
#include <cstring>

#include "external/judges.h"

namespace pgf::external {
namespace {

// PgBouncer's, so that its file in /etc/pam.d serves us too.
constexpr const char* kService = "pgbouncer";

// Whatever is asked for without an echo is the password. Memory is freed by libpam.
int converse(int count, const pam_message** messages, pam_response** responses, void* data) {
  const auto* request = static_cast<const auth::ExternalRequest*>(data);
  if (count < 1 || count > PAM_MAX_NUM_MSG) return PAM_CONV_ERR;
  auto* answers = static_cast<pam_response*>(std::calloc(static_cast<std::size_t>(count), sizeof(pam_response)));
  if (!answers) return PAM_BUF_ERR;
  for (int i = 0; i < count; ++i)
    if (messages[i]->msg_style == PAM_PROMPT_ECHO_OFF) answers[i].resp = ::strdup(request->password.c_str());
  *responses = answers;
  return PAM_SUCCESS;
}

}  // namespace

std::string ask_pam(const auth::ExternalRequest& request) {
  pam_conv conversation{converse, const_cast<auth::ExternalRequest*>(&request)};
  pam_handle_t* pam = nullptr;
  int status = pam_start(kService, request.user.c_str(), &conversation, &pam);
  if (status != PAM_SUCCESS) return std::string("pam_start() failed: ") + pam_strerror(pam, status);
  const char* step = "pam_set_item()";
  status = pam_set_item(pam, PAM_RHOST, request.peer.c_str());
  if (status == PAM_SUCCESS) {
    step = "pam_authenticate()";
    status = pam_authenticate(pam, PAM_SILENT);
  }
  if (status == PAM_SUCCESS) {  // is the account good for anything today?
    step = "pam_acct_mgmt()";
    status = pam_acct_mgmt(pam, PAM_SILENT);
  }
  std::string reason;
  if (status != PAM_SUCCESS) reason = std::string(step) + " failed: " + pam_strerror(pam, status);
  int ended = pam_end(pam, status);
  if (reason.empty() && ended != PAM_SUCCESS) reason = "pam_end() failed";
  return reason;
}

}  // namespace pgf::external
