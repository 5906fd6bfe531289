/** The control calls: load, activate, unload and status, as JSON over HTTP (docs/wire/README.md). */
import type { FastifyInstance, FastifyRequest } from 'fastify';
import { CubeError } from '../lib/core/errors.ts';
import { JsonReader } from '../lib/core/json.ts';
import type { Logger } from '../lib/platform/logs.ts';
import {
  type ActivateAnswer,
  CONTROL_ACTIVATE,
  CONTROL_LOAD,
  CONTROL_STATUS,
  CONTROL_UNLOAD,
  type ControlStatus,
  type LoadAnswer,
  readVersionRequest,
  type UnloadAnswer,
  type VersionRequest,
} from '../proto/control.ts';
import type { ControlAccess } from './control-access.ts';
import type { HeldVersions } from './held-versions.ts';

export interface ControlOptions {
  readonly held: HeldVersions;
  readonly access: ControlAccess;
  readonly logger: Logger;
  readonly ready: () => boolean;
}

export class ControlService {
  readonly #held: HeldVersions;
  readonly #logger: Logger;
  readonly #ready: () => boolean;
  readonly #access: ControlAccess;

  constructor({ held, access, logger, ready }: ControlOptions) {
    this.#held = held;
    this.#access = access;
    this.#logger = logger;
    this.#ready = ready;
  }

  addRoutes(app: FastifyInstance): void {
    const onRequest = async (request: FastifyRequest): Promise<void> => this.#access.check(request);
    app.post(CONTROL_LOAD, { onRequest }, (request) => this.#load(readBody(request)));
    app.post(CONTROL_ACTIVATE, { onRequest }, async (request) => this.#activate(readBody(request)));
    app.post(CONTROL_UNLOAD, { onRequest }, async (request) => this.#unload(readBody(request)));
    app.get(CONTROL_STATUS, { onRequest }, async () => this.status());
  }

  status(): ControlStatus {
    return {
      shardIndex: this.#held.shardIndex,
      shardNum: this.#held.shardNum,
      ready: this.#ready(),
      pid: process.pid,
      bundles: this.#held.bundleStatus(),
      loading: this.#held.loadingStatus(),
      failed: this.#held.failedStatus(),
      memory: this.#held.memory,
    };
  }

  async #load(request: VersionRequest): Promise<LoadAnswer> {
    try {
      const answer = await this.#held.load(request);
      this.#logger.info({ ...request, ...answer }, 'loaded');
      return answer;
    } catch (error) {
      const { code, message } = CubeError.from(error);
      this.#logger.error({ ...request, code, reason: message }, 'load failed');
      throw error;
    }
  }

  #activate(request: VersionRequest): ActivateAnswer {
    const active = this.#held.activate(request);
    this.#logger.info(request, 'activated');
    return { active };
  }

  #unload(request: VersionRequest): UnloadAnswer {
    const unloaded = this.#held.unload(request);
    if (unloaded) this.#logger.info(request, 'unloaded');
    return { unloaded };
  }
}

/** The content type is required: a web page cannot send it to this host without being asked first. */
function readBody(request: FastifyRequest): VersionRequest {
  const contentType = request.headers['content-type'] ?? '';
  if (!contentType.startsWith('application/json')) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `control calls need "Content-Type: application/json", got ${JSON.stringify(contentType)}`,
    );
  }
  const body = request.body instanceof Uint8Array ? request.body : new Uint8Array(0);
  return readVersionRequest(JsonReader.parse(new TextDecoder().decode(body), 'request body'));
}
