#include "web/page.h"

namespace pgf::web {

const BuiltPage kPage = {
    "<!doctype html><meta charset=utf-8><title>pgflotilla</title>"
    "<p>This pgflotilla was built without its web page. <code>/metrics</code>, <code>/livez</code> and "
    "<code>/readyz</code> are here all the same."
    "<p>To have it: install Node, run <code>npm ci --ignore-scripts</code> in the folder <code>web</code> of the "
    "source, "
    "and build again; <code>scripts/setup-debian build</code> does the first two.",
    "default-src 'none'"};

}  // namespace pgf::web
