#include "net/segments.h"

#include <new>

namespace pgf::net {

SegmentPool::~SegmentPool() {
  for (List* list : {&small_, &large_, &refs_}) {
    while (Segment* s = list->free) {
      list->free = s->next;
      ::operator delete(s);
    }
  }
  while (SendOp* op = ops_) {
    ops_ = op->next;
    delete op;
  }
}

Segment* SegmentPool::take(List& list, std::uint32_t capacity) {
  void* memory = list.free;
  if (memory) {
    list.free = list.free->next;
    --list.count;
  } else {
    memory = ::operator new(sizeof(Segment) + capacity);
  }
  auto* segment = new (memory) Segment;
  segment->capacity = capacity;
  if (capacity) segment->data = reinterpret_cast<std::uint8_t*>(segment + 1);
  return segment;
}

void SegmentPool::give(Segment* segment) {
  List& list = segment->capacity == 0 ? refs_ : segment->capacity == kSmallBlock ? small_ : large_;
  if (list.count >= list.keep) {
    ::operator delete(segment);
    return;
  }
  segment->next = list.free;
  list.free = segment;
  ++list.count;
}

SendOp* SegmentPool::op() {
  SendOp* op = ops_;
  if (!op) return new SendOp;
  ops_ = op->next;
  return op;
}

void SegmentPool::give(SendOp* op) {
  op->next = ops_;
  ops_ = op;
}

}  // namespace pgf::net
