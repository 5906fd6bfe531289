/**
 * A serving process, put together: repository and channel → versions → store and model workers → predictor → HTTP. Starting it
 * never waits for a version: it listens at once and is not ready until one is loaded.
 */
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { CubeClient } from '../lib/client/cube-client.ts';
import { FleetFile } from '../lib/client/fleet-file.ts';
import { CubeError } from '../lib/core/errors.ts';
import { systemClock } from '../lib/platform/clock.ts';
import type { Stoppable } from '../lib/platform/lifecycle.ts';
import type { Logger } from '../lib/platform/logs.ts';
import { openRepository, type Repository } from '../lib/repository/repository.ts';
import { Admission } from './admission.ts';
import { type BundleSource, LoadedBundle } from './bundle.ts';
import { BundleWatcher } from './bundle-watcher.ts';
import { createHttpServer } from './http-routes.ts';
import { type DegradationPolicy, Predictor } from './predictor.ts';
import { ServingMetrics } from './serving-metrics.ts';
import type { EmbeddingStore } from './stores/embedding-store.ts';
import { LocalStore } from './stores/local-store.ts';
import { RemoteStore } from './stores/remote-store.ts';

/** Where rows come from: the shards of a fleet file, or an embedded database in a folder. */
export type StoreChoice =
  | { readonly kind: 'remote'; readonly fleetPath: string }
  | { readonly kind: 'local'; readonly dataDir: string };

export interface ServingOptions {
  readonly repository: string;
  readonly bundle: string;
  readonly channel: string;
  readonly store: StoreChoice;
  readonly host: string;
  readonly port: number;
  readonly instances: number;
  readonly pollMs: number;
  readonly timeoutMs: number;
  readonly inFlightMax: number;
  readonly policy: DegradationPolicy;
  readonly logger: Logger;
  /** The model worker's script; tests wrap it to make it die. */
  readonly workerScript?: URL;
}

export interface Serving extends Stoppable {
  /** host:port as bound. */
  readonly address: string;
}

/** How long a version's warm-up rows may take. */
const WARM_UP_TIMEOUT_MS = 30_000;

/** @throws CubeError when an option is wrong, the store cannot be opened or the port is taken */
export async function startServing(options: ServingOptions): Promise<Serving> {
  const { logger } = options;
  const repository = openRepository(options.repository);
  const store = await openStore(options.store, repository, logger);
  const admission = new Admission(options.inFlightMax);
  const metrics = new ServingMetrics();
  const predictor = new Predictor({ store, policy: options.policy, events: metrics });
  const { bundle, channel, pollMs } = options;
  const script = options.workerScript;
  const source: BundleSource = {
    repository,
    bundle,
    store,
    instances: options.instances,
    logger,
    ...(script === undefined ? {} : { workerScript: script }),
  };
  const watcher = new BundleWatcher({
    repository,
    bundle,
    channel,
    pollMs,
    logger,
    load: (version) => loadAndTry(source, version, predictor),
    events: {
      onSwitch: (_from, to) => metrics.onSwitch(to),
      onLoadFailed: (_version, error) => metrics.onLoadFailed(error.code),
    },
  });
  metrics.observe(admission, watcher);
  const server = createHttpServer({
    watcher,
    predictor,
    admission,
    metrics,
    logger,
    timeoutMs: options.timeoutMs,
    storeKind: store.kind,
  });
  try {
    await server.listen({ host: options.host, port: options.port });
  } catch (error) {
    await store.close();
    throw listenError(error, options);
  }
  const { address: host, port } = server.server.address() as AddressInfo;
  const address = `${host.includes(':') ? `[${host}]` : host}:${port}`;
  logger.info({ address, bundle, channel, store: store.kind }, 'listening');
  watcher.start();
  return {
    address,
    async stop() {
      await admission.close();
      await server.close();
      await Promise.all([watcher.stop(), store.close()]);
    },
  };
}

/** Loads a version and answers its warm-up rows the way a user's are. Nothing stays behind when that fails. */
async function loadAndTry(
  source: BundleSource,
  version: string,
  predictor: Predictor,
): Promise<LoadedBundle> {
  const loaded = await LoadedBundle.load(source, version);
  try {
    await predictor.predict(loaded, loaded.goldenRows, systemClock.nowMs() + WARM_UP_TIMEOUT_MS);
    return loaded;
  } catch (error) {
    await loaded.retire();
    const { code, message } = CubeError.from(error);
    throw new CubeError(code, `its warm-up failed: ${message}`, { cause: error });
  }
}

async function openStore(
  choice: StoreChoice,
  repository: Repository,
  logger: Logger,
): Promise<EmbeddingStore> {
  if (choice.kind === 'local') {
    return LocalStore.open({ repository, folder: join(choice.dataDir, 'local-store'), logger });
  }
  const fleet = new FleetFile(choice.fleetPath, {
    onInvalid: (error) =>
      logger.warn(
        { error: error.message },
        'the changed fleet file cannot be used; keeping the old',
      ),
  });
  return new RemoteStore(new CubeClient({ fleet: () => fleet.current(), logger }));
}

function listenError(error: unknown, { host, port }: ServingOptions): CubeError {
  const { code, message } = error as NodeJS.ErrnoException;
  const reason = code === 'EADDRINUSE' ? 'it is in use; choose another with --port' : message;
  return new CubeError('IO', `cannot listen on ${host}:${port}: ${reason}`, { cause: error });
}
