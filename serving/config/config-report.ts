/** What `--check-config` prints: the whole configuration as it was understood, and what of it is ignored, and why. */
import { processors } from '../../lib/platform/machine.ts';
import { yaml } from '../../lib/platform/yaml.ts';
import type { ModelConfig, ServingConfig } from './serving-config.ts';
import type { Instances } from './setting-kinds.ts';

/** Something of a configuration that has no effect here. */
export interface Ignored {
  /** File, line, and the setting's name. */
  readonly setting: string;
  readonly why: string;
}

const INSTANCES_MAX = 256;

/** How many workers that is on this machine. */
export function instanceCount(instances: Instances): number {
  if (typeof instances === 'number') return instances;
  const count = Math.round(instances.perCore * processors());
  return Math.min(Math.max(count, 1), INSTANCES_MAX);
}

export function configReport(config: ServingConfig, ignored: readonly Ignored[]): string {
  const { models, services, ...process } = config;
  const understood = {
    ...process,
    models: models.map(shownModel),
    ...(services.length > 0 && { services }),
  };
  const lines = ignored.map(({ setting, why }) => `ignored: ${setting} (${why})\n`);
  return `${yaml().stringify(understood, { lineWidth: 0 })}${lines.join('')}`;
}

function shownModel({ store, instances, ...model }: ModelConfig): object {
  return { ...model, store: shownStore(store), instances: instanceCount(instances) };
}

/** A Redis URL may hold a password. */
function shownStore(store: ModelConfig['store']): object {
  if (store.kind !== 'redis') return store;
  return { ...store, urls: store.urls.map((url) => url.replace(/(:\/\/)[^@/]*@/, '$1…@')) };
}
