/** The HTTP operations of cube-server, for the OpenAPI document at /openapi.json. */
import type { FastifyInstance } from 'fastify';
import { createOpenApi, type Operation, type Operations } from '../lib/rpc/openapi.ts';
import {
  CONTROL_ACTIVATE,
  CONTROL_DRAIN,
  CONTROL_LOAD,
  CONTROL_STATUS,
  CONTROL_UNDRAIN,
  CONTROL_UNLOAD,
} from '../proto/control.ts';
import { DICT_METHOD, DICT_SERVICE } from '../proto/dict.ts';
import { LOOKUP_METHOD, LOOKUP_SERVICE } from '../proto/lookup.ts';

const DICT_NAMES = [DICT_SERVICE, DICT_SERVICE.slice(DICT_SERVICE.lastIndexOf('.') + 1)];
const COMMAND_PATHS = ['/ControlService/cmd', '/rec.mcube.ControlService/cmd'];

function json(summary: string): Operation {
  return { summary, body: { 'application/json': { type: 'object' } } };
}

function text(summary: string): Operation {
  return { summary, answer: 'text/plain' };
}

function repeat(methods: string[], paths: string[], operation: Operation): Operations {
  const keys = methods.flatMap((method) => paths.map((path) => `${method} ${path}`));
  return Object.fromEntries(keys.map((key) => [key, operation]));
}

/** Those of lookups, and those of control, which may have a port of its own. */
const OPERATIONS: Operations = {
  [`POST /${LOOKUP_SERVICE}/${LOOKUP_METHOD}`]: {
    summary: 'Look up packed keys',
    body: { 'application/proto': { type: 'string', contentMediaType: 'application/proto' } },
    answer: 'application/proto',
  },
  ...repeat(
    ['GET', 'POST', 'PUT'],
    DICT_NAMES.map((service) => `/${service}/${DICT_METHOD}`),
    json("Cube's lookup"),
  ),
  [`POST ${CONTROL_LOAD}`]: json('Load a version'),
  [`POST ${CONTROL_ACTIVATE}`]: json('Answer lookups from a loaded version'),
  [`POST ${CONTROL_UNLOAD}`]: json('Unload a version'),
  [`POST ${CONTROL_DRAIN}`]: json('Refuse new lookups'),
  [`POST ${CONTROL_UNDRAIN}`]: json('Accept lookups again'),
  [`GET ${CONTROL_STATUS}`]: { summary: 'Loaded versions and loads' },
  ...repeat(['POST', 'PUT'], COMMAND_PATHS, json("Cube's control commands")),
  'GET /healthz': text('Whether the process is alive'),
  'GET /health': text('Whether the process is alive'),
  'GET /readyz': text('Whether lookups are answered; 503 if not'),
  'GET /version': text('Program and version'),
  'GET /status': text('Version, process id and readiness'),
  'GET /metrics': text('Metrics in Prometheus text'),
  'GET /openapi.json': { summary: 'This document' },
};

export function addOpenApiRoute(app: FastifyInstance): void {
  let document: object | undefined;
  app.get('/openapi.json', async () => {
    document ??= createOpenApi('Hypercube cube-server', OPERATIONS);
    return document;
  });
}
