/**
 * What a caller needs for each route and method of a serving process. Whatever is not listed needs
 * `predict`, so that a new route is never open by accident.
 */
import type { Requirement } from '../../lib/access/access-gate.ts';
import type { CalledMethod } from '../../lib/access/caller.ts';

const HTTP_REQUIREMENTS: readonly (readonly [RegExp, Requirement])[] = [
  // Supervisors and load balancers have no keys. The page has no data of its own.
  [/^\/(healthz|readyz|openapi\.json|console(\/.*)?)?$/, 'open'],
  [/^\/v2(\/health\/(live|ready))?$/, 'open'],
  [/^\/metrics$|^\/monitoring\//, 'metrics'],
  [/^\/v1\/(status|shadows|console\/snapshot|console\/events)$/, 'metrics'],
  [/^\/v2\/(logging|trace\/|repository\/index|models\/stats)/, 'metrics'],
  [/^\/v2\/models\/.*\/(stats|trace\/setting)$/, 'metrics'],
  [/^\/v2\/repository\/models\/:model\/(load|unload)$/, 'guarded'],
  [/^\/v1\/reload$/, 'guarded'],
];

const GRPC_REQUIREMENTS: readonly (readonly [RegExp, Requirement])[] = [
  [/^\/grpc\.(health|reflection)\./, 'open'],
  [/^\/inference\.GRPCInferenceService\/(Server(Live|Ready|Metadata)|ModelReady)$/, 'open'],
  [/\/(ModelStatistics|RepositoryIndex|TraceSetting|LogSettings)$/, 'metrics'],
  [/\/RepositoryModel(Load|Unload)$/, 'guarded'],
];

export function findRouteAccess({ protocol, path }: CalledMethod): Requirement {
  if (protocol === 'baidu_std') return 'predict';
  const requirements = protocol === 'http' ? HTTP_REQUIREMENTS : GRPC_REQUIREMENTS;
  return requirements.find(([pattern]) => pattern.test(path))?.[1] ?? 'predict';
}
