/** The control calls, independent of their protocol: what they do and what they log. */
import { CubeError } from '../lib/core/errors.ts';
import type { Logger } from '../lib/platform/logs.ts';
import { readHugePageMode } from '../lib/platform/machine.ts';
import type {
  ActivateAnswer,
  ControlStatus,
  DrainAnswer,
  LoadAnswer,
  LoadRequest,
  UnloadAnswer,
  UnloadRequest,
  VersionRequest,
} from '../proto/control.ts';
import type { VersionControl } from './version-control.ts';

export interface ControlOptions {
  readonly versions: VersionControl;
  readonly logger: Logger;
  readonly ready: () => boolean;
}

export class ControlService {
  readonly #versions: VersionControl;
  readonly #logger: Logger;
  readonly #ready: () => boolean;

  constructor({ versions, logger, ready }: ControlOptions) {
    this.#versions = versions;
    this.#logger = logger;
    this.#ready = ready;
  }

  status(): ControlStatus {
    const { loaded, memory } = this.#versions;
    const hugePages = readHugePageMode();
    return {
      shardIndex: loaded.shardIndex,
      shardNum: loaded.shardNum,
      ready: this.#ready(),
      draining: loaded.draining,
      pid: process.pid,
      bundles: loaded.getBundleStatus(),
      loading: this.#versions.getLoadingVersions(),
      failed: this.#versions.getFailedLoads(),
      memory: { ...memory, ...(hugePages === undefined ? {} : { hugePages }) },
    };
  }

  async load(request: LoadRequest): Promise<LoadAnswer> {
    const { bundle, version } = request;
    try {
      const answer = await this.#versions.load(request);
      this.#logger.info({ bundle, version, ...answer }, 'loaded');
      return answer;
    } catch (error) {
      const { code, message } = CubeError.from(error);
      this.#logger.error({ bundle, version, code, reason: message }, 'load failed');
      throw error;
    }
  }

  async activate(request: VersionRequest): Promise<ActivateAnswer> {
    const active = await this.#versions.activate(request);
    this.#logger.info(request, 'activated');
    return { active };
  }

  async unload(request: UnloadRequest): Promise<UnloadAnswer> {
    const unloaded = await this.#versions.unload(request);
    if (unloaded) this.#logger.info(request, 'unloaded');
    return { unloaded };
  }

  async drain(draining: boolean): Promise<DrainAnswer> {
    await this.#versions.drain(draining);
    this.#logger.info(draining ? 'draining' : 'not draining any more');
    return { draining };
  }
}
