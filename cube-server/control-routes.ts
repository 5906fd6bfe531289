/** The control calls as JSON over HTTP (docs/wire/README.md), and Cube's own. */
import type { FastifyInstance, FastifyRequest } from 'fastify';
import { CubeError } from '../lib/core/errors.ts';
import { JsonReader } from '../lib/core/json.ts';
import type { ControlAccess } from '../lib/rpc/control-access.ts';
import { callerOf } from '../lib/rpc/control-caller.ts';
import {
  CONTROL_ACTIVATE,
  CONTROL_DRAIN,
  CONTROL_LOAD,
  CONTROL_STATUS,
  CONTROL_UNDRAIN,
  CONTROL_UNLOAD,
  readLoadRequest,
  readUnloadRequest,
  readVersionRequest,
} from '../proto/control.ts';
import type { CmdService } from './cmd-service.ts';
import type { ControlService } from './control-service.ts';

/** Why a command failed: Cube's answer to a failure has no room for it. */
export const REASON_HEADER = 'x-hypercube-error';
/** Which code it failed with: Cube knows 400 and 500 alone. */
export const CODE_HEADER = 'x-hypercube-code';
const REASON_CHARS_MAX = 1000;
const CMD_PATHS = ['/ControlService/cmd', '/rec.mcube.ControlService/cmd'];

export interface ControlRoutesOptions {
  readonly control: ControlService;
  readonly cmd: CmdService;
  readonly access: ControlAccess;
}

export function addControlRoutes(app: FastifyInstance, options: ControlRoutesOptions): void {
  const { control, cmd, access } = options;
  const onRequest = async (request: FastifyRequest): Promise<void> =>
    access.check(callerOf(request));
  const guarded = { onRequest };
  app.post(CONTROL_LOAD, guarded, async (request) =>
    control.load(readLoadRequest(readBody(request))),
  );
  app.post(CONTROL_ACTIVATE, guarded, async (request) =>
    control.activate(readVersionRequest(readBody(request))),
  );
  app.post(CONTROL_UNLOAD, guarded, async (request) =>
    control.unload(readUnloadRequest(readBody(request))),
  );
  app.post(CONTROL_DRAIN, guarded, async (request) => {
    readBody(request);
    return control.drain(true);
  });
  app.post(CONTROL_UNDRAIN, guarded, async (request) => {
    readBody(request);
    return control.drain(false);
  });
  app.get(CONTROL_STATUS, guarded, async () => control.status());
  for (const path of CMD_PATHS) {
    app.post(path, guarded, async (request, reply) => {
      const { status, text, failure } = await cmd.run(textOf(request));
      if (failure !== undefined) {
        // Cut, it may end with half a character, which no URI can have.
        const reason = Buffer.from(failure.message.slice(0, REASON_CHARS_MAX)).toString();
        reply.header(REASON_HEADER, encodeURI(reason)).header(CODE_HEADER, failure.code);
      }
      // As bytes: of a string the framework would extend the content type by a charset.
      return reply.status(status).type('application/json').send(Buffer.from(text));
    });
  }
}

/** Where control has a port of its own, the data port says so. */
export function refuseControlRoutes(app: FastifyInstance): void {
  const refuse = (): never => {
    throw new CubeError('DENIED', 'control calls are answered on the admin port (--admin-port)');
  };
  for (const path of ['/hypercube.ControlService/*', '/metrics', ...CMD_PATHS]) {
    app.all(path, refuse);
  }
}

/** The content type is required: a web page cannot send it to this host without being asked first. */
function readBody(request: FastifyRequest): JsonReader {
  const contentType = request.headers['content-type'] ?? '';
  if (!contentType.startsWith('application/json')) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `control calls need "Content-Type: application/json", got ${JSON.stringify(contentType)}`,
    );
  }
  return JsonReader.parse(textOf(request), 'request body');
}

function textOf({ body }: FastifyRequest): string {
  return body instanceof Uint8Array ? new TextDecoder().decode(body) : '';
}
