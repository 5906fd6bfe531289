# One image with all programs: docker run hypercube:0.1.0 cube-server --help
FROM node:22-bookworm-slim AS build
WORKDIR /src
COPY . .
# Packages bring their binaries, so no install script has to run (.npmrc).
RUN npm ci
RUN npm run pack -- --pack-destination /tmp
RUN npm install --global --ignore-scripts --prefix /opt/hypercube /tmp/hypercube-0.1.0.tgz
# Compiled code is not part of the package, because it belongs to this version of Node.
RUN cp -r dist/code-cache /opt/hypercube/lib/node_modules/hypercube/dist/

FROM node:22-bookworm-slim
COPY --from=build /opt/hypercube /opt/hypercube
# Volumes that are mounted here for the first time belong to the user.
RUN mkdir /data /repository && chown 10001:10001 /data /repository
ENV PATH=/opt/hypercube/bin:$PATH
USER 10001:10001
EXPOSE 8000 8080 8100
# HYPERCUBE_PORT is also the variable of serving's --port.
HEALTHCHECK --interval=5s --timeout=2s --start-period=60s CMD ["node", "-e", \
  "fetch(`http://127.0.0.1:${process.env.HYPERCUBE_PORT ?? 8080}/healthz`).then(({ ok }) => process.exit(ok ? 0 : 1), () => process.exit(1))"]
CMD ["hypercube", "--help"]
