#include "base/list.h"

#include <gtest/gtest.h>

#include <string>

namespace pgf {
namespace {

struct Item : ListNode {
  explicit Item(char n) : name(n) {}
  char name;
};

std::string names(List<Item>& list) {
  std::string s;
  list.each([&](Item& i) { s += i.name; });
  return s;
}

TEST(List, OrderAndCount) {
  List<Item> list;
  Item a('a'), b('b'), c('c');
  EXPECT_TRUE(list.empty());
  EXPECT_EQ(list.front(), nullptr);
  EXPECT_EQ(list.back(), nullptr);
  list.push_back(&b);
  list.push_back(&c);
  list.push_front(&a);
  EXPECT_EQ(names(list), "abc");
  EXPECT_EQ(list.size(), 3u);
  EXPECT_EQ(list.front(), &a);
  EXPECT_EQ(list.back(), &c);
  EXPECT_EQ(list.after(&a), &b);
  EXPECT_EQ(list.after(&c), nullptr);
  list.remove(&b);
  EXPECT_EQ(names(list), "ac");
  EXPECT_EQ(b.next, nullptr);
  list.push_back(&b);  // may come back
  EXPECT_EQ(names(list), "acb");
  for (Item* i : {&a, &b, &c}) list.remove(i);
  EXPECT_TRUE(list.empty());
  EXPECT_EQ(list.size(), 0u);
}

TEST(List, TheVisitedItemMayLeave) {
  List<Item> list, other;
  Item a('a'), b('b'), c('c');
  for (Item* i : {&a, &b, &c}) list.push_back(i);
  list.each([&](Item& i) {
    if (i.name == 'b') return;
    list.remove(&i);
    other.push_back(&i);
  });
  EXPECT_EQ(names(list), "b");
  EXPECT_EQ(names(other), "ac");
}

}  // namespace
}  // namespace pgf
