"""Debian's Prometheus, scraping one pooler each second."""
import contextlib
import http.client
import json
import subprocess
import urllib.parse

from conftest import free_port


class Prometheus:
    def __init__(self, p, rule_files=(), **job):
        """job: more of its scrape_config."""
        self.log, self.port = p.dir / "prometheus.log", free_port()
        config = p.dir / "prometheus.yml"
        config.write_text(json.dumps({
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(f) for f in rule_files],
            "scrape_configs": [{"job_name": "pgflotilla",
                                "static_configs": [{"targets": [f"127.0.0.1:{p.metrics_port}"]}], **job}]}))
        self.proc = subprocess.Popen(["prometheus", f"--config.file={config}", f"--storage.tsdb.path={p.dir}/tsdb",
                                      f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=warn"],
                                     stdout=open(self.log, "w"), stderr=subprocess.STDOUT)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.proc.kill()
        self.proc.wait()

    def ask(self, path):
        """The answer's data; None while it does not answer yet."""
        try:
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as c:
                c.request("GET", path)
                answer = json.loads(c.getresponse().read())
        except (OSError, ValueError, http.client.HTTPException):
            assert self.proc.poll() is None, self.log.read_text()
            return None
        assert answer["status"] == "success", (path, answer)
        return answer["data"]

    def query(self, expression):
        found = self.ask("/api/v1/query?" + urllib.parse.urlencode({"query": expression}))
        return found and found["result"]
