#pragma once
// Messages to a worker from any thread: lock-free, many producers, one consumer. After push() call Engine::wake() of
// the consumer's engine; it calls pop_all() in on_wake().
#include <atomic>
#include <concepts>

namespace pgf::net {

// T has a member `T* mailbox_next`, which belongs to the mailbox while the message is in it. The mailbox does not own
// messages: whoever pops them does; what is left when it is destroyed is the business of its owner.
template <class T>
requires requires(T t) {
  { t.mailbox_next } -> std::convertible_to<T*>;
}
class Mailbox {
 public:
  Mailbox() = default;
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  // Any thread. True if the mailbox was empty: only then is a wake() needed.
  bool push(T* message) {
    T* head = head_.load(std::memory_order_relaxed);
    do {
      message->mailbox_next = head;
    } while (!head_.compare_exchange_weak(head, message, std::memory_order_release, std::memory_order_relaxed));
    return head == nullptr;
  }

  // The consumer: everything that is there, oldest first, linked by mailbox_next. The link of a message must be read
  // before the message is given away.
  T* pop_all() {
    T* newest_first = head_.exchange(nullptr, std::memory_order_acquire);
    T* oldest_first = nullptr;
    while (newest_first) {
      T* next = newest_first->mailbox_next;
      newest_first->mailbox_next = oldest_first;
      oldest_first = newest_first;
      newest_first = next;
    }
    return oldest_first;
  }

  // pop_all() with the link taken care of.
  template <class F>
  void drain(F&& take) {
    for (T* message = pop_all(); message;) {
      T* next = message->mailbox_next;
      message->mailbox_next = nullptr;
      take(message);
      message = next;
    }
  }

  bool empty() const { return head_.load(std::memory_order_relaxed) == nullptr; }

 private:
  std::atomic<T*> head_{nullptr};  // written by producers (push) and the consumer (take all); no ABA: nobody pops one
};

}  // namespace pgf::net
