"""Ask a page once it is served, and print its status and its title: ``python ask.py HOST:PORT NAME:PASSWORD``."""

import base64
import http.client
import re
import sys
import time


def main(where: str, login: str) -> None:
    """Ask for a minute at most; without a login if that is empty."""
    headers = {"authorization": f"Basic {base64.b64encode(login.encode()).decode()}"} if login else {}
    for _ in range(600):
        connection = http.client.HTTPConnection(where, timeout=60)
        try:
            connection.request("GET", "/", headers=headers)
        except OSError:  # it is not up yet
            time.sleep(0.1)
        else:
            response = connection.getresponse()
            print("page", response.status, *re.findall("<title>(.*? · beanlite)", response.read().decode()))
            return
        finally:
            connection.close()
    sys.exit(f"no page is served at {where}")


if __name__ == "__main__":
    main(*sys.argv[1:])
