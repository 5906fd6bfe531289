/** What the console reads about versions on request: gate reports, and changed rows. */
import type { FastifyRequest } from 'fastify';
import { CubeError } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { NAME_PATTERN } from '../../lib/core/names.ts';
import type { Route } from '../fleet/http-endpoint.ts';
import type { BundleController } from '../rollout/bundle-controller.ts';
import { VersionDiffs } from './version-diff.ts';

const RUN_PATTERN = /^[1-9]\d{0,4}$/;

export function createVersionRoutes(bundles: readonly BundleController[]): Route[] {
  const diffs = new VersionDiffs();
  const findRepository = (bundle: string) => {
    const found = bundles.find(({ options }) => options.bundle === bundle);
    if (found !== undefined) return found.options.repository;
    throw new CubeError('NOT_FOUND', 'this controller does not have the bundle');
  };
  return [
    {
      method: 'GET',
      scope: 'metrics',
      path: '/controller/v1/gate-reports/:bundle/:version/:run',
      summary: 'A report of the gate',
      handle: async (request) => {
        const { bundle, version, run } = readParameters(request, ['bundle', 'version', 'run']);
        if (!RUN_PATTERN.test(run)) throw new CubeError('NOT_FOUND', 'reports have numbers from 1');
        const log = findRepository(bundle).rolloutLog(bundle, version);
        const text = await log.readGateReport(Number(run), 'json');
        return JsonReader.parse(text, `report ${run}`).value as object;
      },
    },
    {
      method: 'GET',
      scope: 'metrics',
      path: '/controller/v1/changes/:bundle/:before/:after',
      summary: 'Numbers of rows added, removed and changed between two versions, by table',
      handle: (request) => {
        const { bundle, before, after } = readParameters(request, ['bundle', 'before', 'after']);
        return diffs.compare(findRepository(bundle), bundle, before, after);
      },
    },
  ];
}

/** @throws CubeError NOT_FOUND when one of them is no name */
function readParameters<Name extends string>(
  { params }: FastifyRequest,
  names: readonly Name[],
): Record<Name, string> {
  const given = params as Readonly<Record<string, string>>;
  const entries = names.map((name) => {
    const text = given[name] ?? '';
    if (!NAME_PATTERN.test(text)) throw new CubeError('NOT_FOUND', `${name} is not a name`);
    return [name, text];
  });
  return Object.fromEntries(entries) as Record<Name, string>;
}
