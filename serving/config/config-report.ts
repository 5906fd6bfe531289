/**
 * The output of `--check-config`: the complete configuration, and the ignored settings with
 * reasons.
 */
import { isCubeConf, listUnknownCubeConfFields } from '../../lib/client/cube-conf.ts';
import { readText } from '../../lib/platform/files.ts';
import { formatProvider } from '../../lib/platform/onnx-providers.ts';
import { loadYaml } from '../../lib/platform/yaml.ts';
import { countInstances, type ModelConfig, type ServingConfig } from './serving-config.ts';

const CUBE_CONF_BYTES_MAX = 16 << 20;

/** A setting of a configuration file that has no effect here. */
export interface IgnoredSetting {
  /** File, line and name of the setting. */
  readonly setting: string;
  readonly reason: string;
}

/** Fields without an effect in the cube.conf files that models read, if these can be read. */
export function listIgnoredCubeFields(
  models: readonly Pick<ModelConfig, 'store'>[],
): IgnoredSetting[] {
  const paths = models.flatMap(({ store }) => (store.kind === 'remote' ? [store.fleetPath] : []));
  return [...new Set(paths)].flatMap((path) => {
    try {
      const text = readText(path, CUBE_CONF_BYTES_MAX);
      if (!isCubeConf(text)) return [];
      const reason = 'not a setting of cube.conf';
      return listUnknownCubeConfFields(text, path).map((field) => {
        return { setting: `${path}: ${field}`, reason };
      });
    } catch {
      // The start of the store says what is wrong.
      return [];
    }
  });
}

export function formatConfigReport(
  config: ServingConfig,
  ignored: readonly IgnoredSetting[],
): string {
  const { models, services, ...process } = config;
  const complete = {
    ...process,
    models: models.map(formatModel),
    ...(services.length > 0 && { services }),
  };
  const lines = ignored.map(({ setting, reason }) => `ignored: ${setting} (${reason})\n`);
  return `${loadYaml().stringify(complete, { lineWidth: 0 })}${lines.join('')}`;
}

function formatModel({ store, instances, placements, ...model }: ModelConfig): object {
  return {
    ...model,
    store: hideCredentials(store),
    instances: countInstances(instances),
    // One list of providers for each device.
    placements: placements.map((order) => order.map(formatProvider)),
  };
}

/** A Redis URL may contain a password. */
function hideCredentials(store: ModelConfig['store']): object {
  if (store.kind !== 'redis') return store;
  return { ...store, urls: store.urls.map((url) => url.replace(/(:\/\/)[^@/]*@/, '$1…@')) };
}
