/** `cube-agent controller`: rolls out new versions of bundles, until it is told to stop. */
import type { Command } from '../../lib/platform/cli.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import {
  addDecryptOptions,
  type DecryptOptions,
  shareDecryptKeys,
} from '../../lib/platform/encryption-options.ts';
import { runService, type Stoppable } from '../../lib/platform/lifecycle.ts';
import { addLogFormatOption, createLogger, type LogFormat } from '../../lib/platform/logs.ts';
import { BundleController } from '../rollout/bundle-controller.ts';
import { Controller } from '../rollout/controller.ts';
import { readControllerConfig } from '../rollout/rollout-config.ts';
import { addAuthorOption, getDefaultAuthor, openRepositoryWithKeys } from './options.ts';
import { openLiveFleet } from './rollout-setup.ts';

const EXAMPLES = `
Example:
  cube-agent controller --config /etc/hypercube/controller.yaml

Several controllers may run at the same time: each step of a rollout is done by the
controller that claims it first.`;

export function addControllerCommand(program: Command): void {
  const command = program
    .command('controller')
    .description('Roll out new versions automatically: stage, gate, activate, watch, roll back')
    .requiredOption('--config <file>', 'controller.yaml (docs/rollout.md)');
  const authored = addAuthorOption(command, `controller ${getDefaultAuthor()}`);
  addLogFormatOption(addDecryptOptions(authored))
    .addHelpText('after', EXAMPLES)
    .action(runController);
}

interface ControllerFlags extends DecryptOptions {
  readonly config: string;
  readonly by: string;
  readonly logFormat?: LogFormat;
}

async function runController(flags: ControllerFlags): Promise<void> {
  const { config: path, by, logFormat: format } = flags;
  shareDecryptKeys(flags);
  const config = readControllerConfig(path);
  const { automatic, pollMs, listen } = config;
  const logger = createLogger('cube-agent controller', { format });
  const repository = openRepositoryWithKeys(config);
  const stopping = new AbortController();
  const setup = { ...config, repository, source: config, holder: by, logger };
  const bundles = config.bundles.map((bundle) => {
    const fleet = openLiveFleet({ ...setup, stopping: stopping.signal }, bundle);
    const { name, policy } = bundle;
    const parts = { repository, policy, fleet, automatic, logger, clock: systemClock };
    return new BundleController({ ...parts, bundle: name, holder: by });
  });
  const controller = new Controller(bundles, { clock: systemClock, pollMs, stopping });
  const endpoint =
    listen === undefined
      ? undefined
      : (await import('./endpoints.ts')).createControllerEndpoint(controller, config, logger);
  const start = async (): Promise<Stoppable> => {
    if (listen !== undefined) await endpoint?.listen(listen);
    controller.start();
    logger.info({ repository: config.repository, automatic, by }, 'running');
    return {
      stop: async () => {
        await Promise.all([endpoint?.stop(), controller.stop()]);
      },
    };
  };
  await runService(start, logger);
}
