/**
 * Watches which version callers of a fleet have to request: the channel's, as soon as every shard
 * has loaded it.
 */
import { join } from 'node:path';
import { CubeClient } from '../../lib/client/cube-client.ts';
import { FleetFile } from '../../lib/client/fleet-file.ts';
import { requireDefined } from '../../lib/core/errors.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import { openRepository } from '../../lib/repository/repository.ts';
import { BUNDLE } from './demo-model.ts';

const POLL_MS = 50;
const TIMEOUT_MS = 5_000;

export class ChannelWatch {
  readonly #client: CubeClient;
  readonly #timer: NodeJS.Timeout;
  readonly #hasVersion: Promise<void>;
  #manifest: Manifest | undefined;

  /**
   * @param folder of the fleet, with `repository` and `fleet.json`
   * @param onVersion called with each new version; the next one waits until it has settled
   */
  constructor(folder: string, onVersion?: (manifest: Manifest) => Promise<void>) {
    const fleet = new FleetFile(join(folder, 'fleet.json'), { onInvalid: () => undefined });
    this.#client = new CubeClient({ fleet: () => fleet.current() });
    const repository = openRepository(join(folder, 'repository'));
    let resolveFirst = (): void => undefined;
    let rejectFirst = (_: unknown): void => undefined;
    this.#hasVersion = new Promise((resolve, reject) => {
      resolveFirst = resolve;
      rejectFirst = reject;
    });
    this.#hasVersion.catch(() => undefined);
    const poll = async (): Promise<void> => {
      const { pointer } = await repository.readChannel(BUNDLE, 'stable');
      if (pointer === undefined || pointer.version === this.#manifest?.version) return;
      const manifest = await repository.readManifest(BUNDLE, pointer.version);
      if (!(await this.#client.checkLoaded(manifest, TIMEOUT_MS)).loaded) return;
      this.#manifest = manifest;
      await onVersion?.(manifest);
      resolveFirst();
    };
    let isPolling = false;
    this.#timer = setInterval(() => {
      if (isPolling) return;
      isPolling = true;
      // Once there is a version, the next poll tries again.
      void poll()
        .catch(rejectFirst)
        .finally(() => {
          isPolling = false;
        });
    }, POLL_MS);
  }

  /** The version to request now; only after `waitForVersion`. */
  get manifest(): Manifest {
    return requireDefined(this.#manifest, 'a version to request');
  }

  /** Waits until there is a version to request. @throws CubeError when it cannot be read */
  async waitForVersion(): Promise<void> {
    await this.#hasVersion;
  }

  close(): void {
    clearInterval(this.#timer);
    this.#client.close();
  }
}
