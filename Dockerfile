# Both commands of README.md, as a user without root rights: `docker build -t leakbench .` installs leakbench and runs
# the first experiment, `docker build --target test .` runs the tests. `docker run leakbench run --defense fed_cdp` runs any command.
FROM python:3.12-slim AS source
RUN useradd --create-home user
WORKDIR /home/user/leakbench
RUN chown user:user .
USER user
COPY --chown=user:user . .

FROM source AS test
RUN python3 -m venv .venv && .venv/bin/pip install -q -e '.[test]' && .venv/bin/python -m pytest

FROM source
RUN python3 -m venv .venv && .venv/bin/pip install -q . && .venv/bin/leakbench run
ENTRYPOINT [".venv/bin/leakbench"]
CMD ["--help"]
