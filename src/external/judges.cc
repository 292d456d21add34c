#include "external/judges.h"

#include <signal.h>
#include <string.h>

#include <system_error>
#include <thread>

namespace pgf::external {
namespace {

std::string ask_system(const auth::ExternalRequest& request) {
  return request.method == auth::ExternalRequest::Method::pam ? ask_pam(request) : ask_ldap(request);
}

}  // namespace

Judges::Judges(unsigned threads, std::size_t most_waiting, Ask ask)
    : most_threads_(threads), most_waiting_(most_waiting), ask_(ask ? std::move(ask) : Ask(ask_system)) {}

Judges::~Judges() {
  std::unique_lock lock(state_->mutex);
  state_->stop = true;
  state_->queue.clear();
  state_->changed.notify_all();
  // Those that have nothing to do end at once; whoever is busy ends by itself, and touches only what it shares.
  state_->changed.wait(lock, [&] { return state_->idle == 0; });
}

bool Judges::start(auth::ExternalRequest request, Done done) {
  std::lock_guard lock(state_->mutex);
  if (state_->stop || state_->queue.size() >= most_waiting_) return false;
  state_->queue.push_back({std::move(request), std::move(done)});
  if (state_->idle < state_->queue.size() && state_->running < most_threads_) {
    ++state_->running;
    // Signals are for the control thread.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      std::thread(work, state_, ask_).detach();
    } catch (const std::system_error&) {  // a limit of the user or of the container: those that are there must do
      --state_->running;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (state_->running == 0) {
      state_->queue.pop_back();
      return false;
    }
  }
  state_->changed.notify_one();
  return true;
}

void Judges::work(std::shared_ptr<State> state, Ask ask) {
  std::unique_lock lock(state->mutex);
  while (true) {
    ++state->idle;
    state->changed.wait(lock, [&] { return state->stop || !state->queue.empty(); });
    --state->idle;
    if (state->stop) break;
    Job job = std::move(state->queue.front());
    state->queue.pop_front();

    lock.unlock();
    std::string reason = ask(job.request);
    explicit_bzero(job.request.password.data(), job.request.password.size());
    lock.lock();
    if (!state->stop) job.done(std::move(reason));
  }
  --state->running;
  state->changed.notify_all();
}

}  // namespace pgf::external
