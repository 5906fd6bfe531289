/** The console of a serving process, and what its forms ask for. */
import type { ConsoleFeed } from '../../lib/console/console-feed.ts';
import { registerConsole } from '../../lib/console/console-routes.ts';
import { CubeError } from '../../lib/core/errors.ts';
import type { LoadedBundle } from '../engine/loaded-bundle.ts';
import { listExampleRows } from '../metrics/console-source.ts';
import { lookUpRow } from '../metrics/row-lookup.ts';
import { sampleTable } from '../metrics/table-sample.ts';
import { type Models, requireBundle } from '../models/model-registry.ts';
import type { Endpoints } from './endpoints.ts';

interface VersionQuery {
  readonly model?: string;
  readonly version?: string;
}

export function registerServingConsole(
  { http: { app } }: Endpoints,
  models: Models,
  feed: ConsoleFeed,
): void {
  registerConsole(app, feed);
  const find = ({ model, version }: VersionQuery): LoadedBundle => {
    if (model === undefined) return requireBundle(models.findOnly());
    return requireBundle(models.find(model, version === undefined ? {} : { version }));
  };
  app.get('/v1/console/examples', async ({ query }) =>
    listExampleRows(find(readQuery(query, ['model', 'version']))),
  );
  app.get('/v1/console/row', async ({ query }) => {
    const names = ['model', 'version', 'slot', 'feature', 'key', 'table'] as const;
    const given = readQuery(query, names);
    return lookUpRow(find(given), given);
  });
  app.get('/v1/console/table', async ({ query }) => {
    const given = readQuery(query, ['model', 'version', 'table']);
    return sampleTable(find(given), given.table ?? '');
  });
}

/** @throws CubeError INVALID_ARGUMENT for a parameter that is unknown or comes twice */
function readQuery<Name extends string>(
  query: unknown,
  names: readonly Name[],
): Partial<Record<Name, string>> {
  for (const [name, value] of Object.entries(query as object)) {
    if (names.some((known) => known === name) && typeof value === 'string') continue;
    const shown = JSON.stringify(name.slice(0, 60));
    throw new CubeError(
      'INVALID_ARGUMENT',
      `parameter ${shown}: expected each of ${names.join(', ')} at most once`,
    );
  }
  return query as Partial<Record<Name, string>>;
}
