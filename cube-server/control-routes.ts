/** Control calls as JSON over HTTP (docs/wire/README.md), and Cube's commands. */
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { CubeError } from '../lib/core/errors.ts';
import { JsonReader } from '../lib/core/json.ts';
import type { ControlAccess } from '../lib/rpc/control-access.ts';
import {
  CONTROL_ACTIVATE,
  CONTROL_DRAIN,
  CONTROL_LOAD,
  CONTROL_STATUS,
  CONTROL_UNDRAIN,
  CONTROL_UNLOAD,
  readLoadRequest,
  readStatusOption,
  readUnloadRequest,
  readVersionRequest,
} from '../proto/control.ts';
import type { ControlService } from './control-service.ts';
import type { CubeCommandService } from './cube-command-service.ts';

/** Why a command failed: Cube's response body has no field for it. */
export const REASON_HEADER = 'x-hypercube-error';
/** Error code of a failed command: Cube's only statuses are 400 and 500. */
export const CODE_HEADER = 'x-hypercube-code';
const REASON_CHARS_MAX = 1000;
const CMD_PATHS = ['/ControlService/cmd', '/rec.mcube.ControlService/cmd'];

export interface ControlRoutesOptions {
  readonly control: ControlService;
  readonly cubeCommands: CubeCommandService;
  readonly access: ControlAccess;
}

export function addControlRoutes(app: FastifyInstance, options: ControlRoutesOptions): void {
  const { control, cubeCommands, access } = options;
  const staging = access.guard('control:stage');
  const activating = access.guard('control:activate');
  const draining = access.guard('control:drain');
  const addAction = (
    path: string,
    guard: typeof staging,
    act: (json: JsonReader) => Promise<object>,
  ): void => {
    app.post(path, guard, async (request) => {
      const json = readBody(request);
      const wantsStatus = readStatusOption(json);
      const answer = await act(json);
      return wantsStatus ? { ...answer, status: control.status() } : answer;
    });
  };
  addAction(CONTROL_LOAD, staging, (json) => control.load(readLoadRequest(json)));
  addAction(CONTROL_ACTIVATE, activating, (json) => control.activate(readVersionRequest(json)));
  addAction(CONTROL_UNLOAD, staging, (json) => control.unload(readUnloadRequest(json)));
  app.post(CONTROL_DRAIN, draining, async (request) => {
    readBody(request);
    return control.drain(true);
  });
  app.post(CONTROL_UNDRAIN, draining, async (request) => {
    readBody(request);
    return control.drain(false);
  });
  app.get(CONTROL_STATUS, access.guard('metrics'), async () => control.status());
  const runCommand = async (
    request: FastifyRequest,
    reply: FastifyReply,
  ): Promise<FastifyReply> => {
    const { status, text, failure } = await cubeCommands.run(decodeBody(request));
    if (failure !== undefined) {
      // A cut may split a surrogate pair, which no URI can contain.
      const reason = Buffer.from(failure.message.slice(0, REASON_CHARS_MAX)).toString();
      reply.header(REASON_HEADER, encodeURI(reason)).header(CODE_HEADER, failure.code);
    }
    // Sent as bytes: for a string the framework would add a charset to the content type.
    return reply.status(status).type('application/json').send(Buffer.from(text));
  };
  for (const url of CMD_PATHS) {
    // A command may load and switch.
    app.route({ method: ['POST', 'PUT'], url, ...activating, handler: runCommand });
  }
}

/** Refuses control calls on the data port when control has a port of its own. */
export function refuseControlRoutes(app: FastifyInstance): void {
  const refuse = (): never => {
    throw new CubeError('DENIED', 'control calls are answered on the admin port (--admin-port)');
  };
  for (const path of ['/hypercube.ControlService/*', '/metrics', ...CMD_PATHS]) {
    app.all(path, refuse);
  }
}

/**
 * Requires the JSON content type, which a web page cannot send to this host without a preflight
 * request.
 */
function readBody(request: FastifyRequest): JsonReader {
  const contentType = request.headers['content-type'] ?? '';
  if (!contentType.startsWith('application/json')) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `control calls need "Content-Type: application/json", got ${JSON.stringify(contentType)}`,
    );
  }
  return JsonReader.parse(decodeBody(request), 'request body');
}

function decodeBody({ body }: FastifyRequest): string {
  return body instanceof Uint8Array ? new TextDecoder().decode(body) : '';
}
