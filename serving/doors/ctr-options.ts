/** What a CTR call asks for beside its rows: which model and version, how urgent, how much to be told. */
import { CubeError } from '../../lib/core/errors.ts';
import type { LoadedBundle } from '../models/bundle.ts';
import type { Models } from '../models/models.ts';

export interface CtrOptions {
  /** Empty: the one that is served. */
  readonly model: string;
  /** Empty: the one that the channel wants. */
  readonly version: string;
  /** A channel's name, instead of a version; empty: the first channel. */
  readonly label: string;
  /** 0 goes first; undefined: as usual. */
  readonly priority: number | undefined;
  /** Outcomes slot by slot. */
  readonly detail: boolean;
  /** How long the steps took. */
  readonly timings: boolean;
}

export const PRIORITY_MAX = 2;
const NAMES = ['model', 'version', 'label', 'priority', 'detail', 'timings'];

/** From a query string. @throws CubeError INVALID_ARGUMENT naming the parameter */
export function readOptions(query: unknown): CtrOptions {
  const given = query as Readonly<Record<string, string | string[]>>;
  const text = (name: string): string => {
    const value = given[name] ?? '';
    if (typeof value !== 'string') return refuse(name, 'comes more than once');
    return value;
  };
  for (const name of Object.keys(given)) {
    if (!NAMES.includes(name)) refuse(name, `is not one of ${NAMES.join(', ')}`);
  }
  const flag = (name: string): boolean => {
    const value = text(name);
    if (!/^(true|false|)$/.test(value)) refuse(name, 'is neither true nor false');
    return value === 'true';
  };
  const priority = text('priority');
  if (!/^[0-2]?$/.test(priority)) refuse('priority', `is not in 0..${PRIORITY_MAX}`);
  return {
    model: text('model'),
    version: text('version'),
    label: text('label'),
    priority: priority === '' ? undefined : Number(priority),
    detail: flag('detail'),
    timings: flag('timings'),
  };
}

function refuse(name: string, what: string): never {
  const shown = JSON.stringify(name.slice(0, 64));
  throw new CubeError('INVALID_ARGUMENT', `query parameter ${shown} ${what}`);
}

/** @throws CubeError NOT_FOUND, NOT_READY; INVALID_ARGUMENT when several models are served and none is named */
export function bundleOf(
  models: Models,
  { model, version, label }: Pick<CtrOptions, 'model' | 'version' | 'label'>,
): LoadedBundle {
  const which = {
    ...(version === '' ? {} : { version }),
    ...(label === '' ? {} : { label }),
  };
  if (model === '' && version === '' && label === '') return models.only();
  return models.find(model === '' ? models.only().manifest.bundle : model, which);
}
