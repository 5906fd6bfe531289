/**
 * Options of a CTR request: model, version, priority, and the details to include in the response.
 */

import { CubeError } from '../../lib/core/errors.ts';
import { quoteInput } from '../../lib/core/shown-input.ts';
import type { LoadedBundle } from '../engine/loaded-bundle.ts';
import type { VersionFinder } from '../models/experiments.ts';
import { requireBundle } from '../models/model-registry.ts';

export interface CtrOptions {
  /** Empty: the only model. */
  readonly model: string;
  /** Empty: the channel's active version. */
  readonly version: string;
  /** A channel, instead of a version. Empty: the first channel. */
  readonly label: string;
  /** 0 is the highest priority; undefined is the default. */
  readonly priority: number | undefined;
  /** Include lookup outcomes per slot. */
  readonly detail: boolean;
  /** Include the durations of the steps. */
  readonly timings: boolean;
  /** Send the profile of the request beside the response. */
  readonly profile: boolean;
}

export const PRIORITY_MAX = 2;
const NO_OPTIONS: CtrOptions = {
  model: '',
  version: '',
  label: '',
  priority: undefined,
  detail: false,
  timings: false,
  profile: false,
};
const OPTION_NAMES = ['model', 'version', 'label', 'priority', 'detail', 'timings', 'profile'];

/** Parses a query string. @throws CubeError INVALID_ARGUMENT naming the parameter */
export function parseCtrOptions(query: unknown): CtrOptions {
  const given = query as Readonly<Record<string, string | string[]>>;
  if (isEmpty(given)) return NO_OPTIONS;
  const text = (name: string): string => {
    const value = given[name] ?? '';
    if (typeof value !== 'string') return rejectParameter(name, 'is given more than once');
    return value;
  };
  for (const name of Object.keys(given)) {
    if (!OPTION_NAMES.includes(name))
      rejectParameter(name, `is not one of ${OPTION_NAMES.join(', ')}`);
  }
  const flag = (name: string): boolean => {
    const value = text(name);
    if (!/^(true|false|)$/.test(value)) rejectParameter(name, 'is neither true nor false');
    return value === 'true';
  };
  const priority = text('priority');
  if (!/^[0-2]?$/.test(priority)) rejectParameter('priority', `is not in 0..${PRIORITY_MAX}`);
  return {
    model: text('model'),
    version: text('version'),
    label: text('label'),
    priority: priority === '' ? undefined : Number(priority),
    detail: flag('detail'),
    timings: flag('timings'),
    profile: flag('profile'),
  };
}

function isEmpty(given: object): boolean {
  for (const _ in given) return false;
  return true;
}

function rejectParameter(name: string, problem: string): never {
  const shown = quoteInput(name);
  throw new CubeError('INVALID_ARGUMENT', `query parameter ${shown} ${problem}`);
}

/**
 * @throws CubeError NOT_FOUND, NOT_READY; INVALID_ARGUMENT when several models are served and none
 *   is named
 */
export function findBundle(
  models: VersionFinder,
  { model, version, label }: Pick<CtrOptions, 'model' | 'version' | 'label'>,
): LoadedBundle {
  if (model === '' && version === '' && label === '') return requireBundle(models.findOnly());
  const selector = {
    ...(version === '' ? {} : { version }),
    ...(label === '' ? {} : { label }),
  };
  return requireBundle(models.find(model === '' ? models.findOnlyName() : model, selector));
}
