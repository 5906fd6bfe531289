/** The console of a serving process, and what its forms ask for. */
import type { FastifyRequest } from 'fastify';
import type { ConsoleFeed } from '../../lib/console/console-feed.ts';
import { registerConsole } from '../../lib/console/console-routes.ts';
import { CubeError } from '../../lib/core/errors.ts';
import type { LoadedBundle } from '../engine/loaded-bundle.ts';
import { listExampleRows } from '../metrics/console-source.ts';
import { lookUpRow } from '../metrics/row-lookup.ts';
import { sampleTable } from '../metrics/table-sample.ts';
import { type Models, requireBundle } from '../models/model-registry.ts';
import type { Endpoints } from './endpoints.ts';
import { checkModelAccess } from './handle-prediction.ts';

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
  const find = ({ model, version }: VersionQuery, { grant }: FastifyRequest): LoadedBundle => {
    const selector = version === undefined ? {} : { version };
    const found = model === undefined ? models.findOnly() : models.find(model, selector);
    return requireBundle(checkModelAccess(models, grant, found));
  };
  app.get('/v1/console/examples', async (request) =>
    listExampleRows(find(readQuery(request.query, ['model', 'version']), request)),
  );
  app.get('/v1/console/row', async (request) => {
    const names = ['model', 'version', 'slot', 'feature', 'key', 'table'] as const;
    const given = readQuery(request.query, names);
    return lookUpRow(find(given, request), given);
  });
  app.get('/v1/console/table', async (request) => {
    const given = readQuery(request.query, ['model', 'version', 'table']);
    return sampleTable(find(given, request), given.table ?? '');
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
