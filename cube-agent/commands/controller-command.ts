/** `cube-agent controller`: rolls out new versions of bundles, until it is told to stop. */
import type { Command } from '../../lib/platform/cli.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import { runService, type Stoppable } from '../../lib/platform/lifecycle.ts';
import { createLogger, type Logger } from '../../lib/platform/logs.ts';
import type { EndpointFiles } from '../fleet/endpoint-access.ts';
import { BundleController } from '../rollout/bundle-controller.ts';
import { Controller } from '../rollout/controller.ts';
import type { ControllerEndpoint } from '../rollout/controller-endpoint.ts';
import { readControllerConfig } from '../rollout/rollout-config.ts';
import { openWithKeys } from './keys.ts';
import { defaultAuthor } from './options.ts';
import { openLiveFleet } from './rollout-setup.ts';

const EXAMPLES = `
Example:
  cube-agent controller --config /etc/hypercube/controller.yaml
A second controller may run beside it: both see the same rollouts, and whoever is first takes the next step.`;

export function addControllerCommand(program: Command): void {
  program
    .command('controller')
    .description('roll out new versions by themselves: stage, gate, activate, watch, roll back')
    .requiredOption('--config <file>', 'controller.yaml')
    .option('--by <who>', 'who; kept in the history', `controller ${defaultAuthor()}`)
    .addHelpText('after', EXAMPLES)
    .action(runController);
}

/** What listens is loaded by those who listen. */
async function endpointOf(
  controller: Controller,
  config: EndpointFiles,
  logger: Logger,
): Promise<ControllerEndpoint> {
  const { ControllerEndpoint } = await import('../rollout/controller-endpoint.ts');
  return new ControllerEndpoint(controller, config, logger);
}

async function runController({ config: path, by }: { config: string; by: string }): Promise<void> {
  const config = readControllerConfig(path);
  const { automatic, pollMs, listen } = config;
  const logger = createLogger('cube-agent controller');
  const repository = openWithKeys(config);
  const stopping = new AbortController();
  const setup = { ...config, repository, place: config, holder: by, logger };
  const bundles = config.bundles.map((bundle) => {
    const fleet = openLiveFleet({ ...setup, stopping: stopping.signal }, bundle);
    const { name, policy } = bundle;
    const parts = { repository, policy, fleet, automatic, logger, clock: systemClock };
    return new BundleController({ ...parts, bundle: name, holder: by });
  });
  const controller = new Controller(bundles, { clock: systemClock, pollMs, stopping });
  const endpoint = listen === undefined ? undefined : await endpointOf(controller, config, logger);
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
