/** The routes and metrics of a controller: the status of its rollouts, and a poke. */
import { ROLLOUT_STATES } from '../../lib/core/rollout.ts';
import { MetricsRegistry } from '../../lib/platform/metrics.ts';
import type { Route } from '../fleet/http-endpoint.ts';
import type { BundleController } from './bundle-controller.ts';
import type { Controller } from './controller.ts';
import { toRolloutStatus } from './rollout-status.ts';

export function createControllerRoutes(controller: Controller): Route[] {
  return [
    {
      method: 'GET',
      path: '/controller/v1/status',
      scope: 'metrics',
      summary: 'Rollouts of each bundle',
      handle: () => ({ format: 1, bundles: controller.bundles.map(toBundleStatus) }),
    },
    {
      method: 'POST',
      path: '/controller/v1/poke',
      scope: 'control:stage',
      summary: 'Poll now',
      handle: () => {
        controller.poke();
        return { poked: true };
      },
    },
  ];
}

function toBundleStatus({ options, progress, problems }: BundleController): object {
  return {
    bundle: options.bundle,
    rollouts: [...progress].map(([version, rollout]) => toRolloutStatus(version, rollout)),
    problems,
  };
}

export function createControllerMetrics(bundles: readonly BundleController[]): MetricsRegistry {
  const metrics = new MetricsRegistry();
  metrics.collectedGauge({
    name: 'hypercube_rollouts',
    help: 'Rollouts in each state.',
    labels: ['bundle', 'state'],
    collect: (set) => {
      for (const { options, progress } of bundles) {
        const states = [...progress.values()].map(({ state }) => state);
        for (const state of ROLLOUT_STATES) {
          const count = states.filter((candidate) => candidate === state).length;
          set({ bundle: options.bundle, state }, count);
        }
      }
    },
  });
  metrics.collectedGauge({
    name: 'hypercube_rollouts_blocked',
    help: 'Rollouts that need an operator: a channel is pinned or cannot be rolled back.',
    labels: ['bundle'],
    collect: (set) => {
      for (const { options, progress } of bundles) {
        const steps = [...progress.values()].map(({ step }) => step);
        const blocked = steps.filter((step) => step.kind === 'wait' && step.isBlocked);
        set({ bundle: options.bundle }, blocked.length);
      }
    },
  });
  metrics.collectedGauge({
    name: 'hypercube_rollout_problems',
    help: 'Rollouts that fail to advance, for example because the repository is unreadable.',
    labels: ['bundle'],
    collect: (set) => {
      for (const { options, problems } of bundles) {
        set({ bundle: options.bundle }, problems.length);
      }
    },
  });
  metrics.collectedCounter({
    name: 'hypercube_rollout_steps_total',
    help: 'Rollout steps taken by this process, by kind.',
    labels: ['bundle', 'kind'],
    collect: (set) => {
      for (const { options, steps } of bundles) {
        for (const [kind, count] of steps) set({ bundle: options.bundle, kind }, count);
      }
    },
  });
  return metrics;
}
