#pragma once
// An intrusive doubly linked list: membership costs no allocation, leaving is O(1) from the object itself.
#include <cstddef>

namespace pgf {

struct ListNode {
  ListNode* prev = nullptr;
  ListNode* next = nullptr;
  ListNode() = default;
  ListNode(const ListNode&) = delete;
  ListNode& operator=(const ListNode&) = delete;
};

// T derives from ListNode. An object is in at most one list; the list keeps count.
template <class T>
class List {
 public:
  List() { root_.prev = root_.next = &root_; }
  bool empty() const { return root_.next == &root_; }
  std::size_t size() const { return size_; }
  T* front() { return empty() ? nullptr : static_cast<T*>(root_.next); }
  T* back() { return empty() ? nullptr : static_cast<T*>(root_.prev); }
  T* after(T* item) { return item->next == &root_ ? nullptr : static_cast<T*>(item->next); }
  void push_back(T* item) { insert(item, root_.prev, &root_); }
  void push_front(T* item) { insert(item, &root_, root_.next); }
  void remove(T* item) {
    item->prev->next = item->next;
    item->next->prev = item->prev;
    item->prev = item->next = nullptr;
    --size_;
  }
  // Visits every item; the visited item may leave the list, others must not.
  template <class F>
  void each(F&& f) {
    for (ListNode* n = root_.next; n != &root_;) {
      ListNode* next = n->next;
      f(*static_cast<T*>(n));
      n = next;
    }
  }

 private:
  void insert(ListNode* item, ListNode* prev, ListNode* next) {
    item->prev = prev;
    item->next = next;
    prev->next = next->prev = item;
    ++size_;
  }
  ListNode root_;
  std::size_t size_ = 0;
};

}  // namespace pgf
