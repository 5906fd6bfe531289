/**
 * What a caller needs for each route and method of a cube-server. Whatever is not listed needs
 * `tables`, so that a new route is never open by accident.
 */
import type { Requirement } from '../lib/access/access-gate.ts';
import type { CalledMethod } from '../lib/access/caller.ts';

const REQUIREMENTS: readonly (readonly [RegExp, Requirement])[] = [
  // Supervisors and load balancers have no keys.
  [/^\/(healthz|health|readyz|version|status|openapi\.json)$/, 'open'],
  [/^\/grpc\.(health|reflection)\./, 'open'],
  [/^\/metrics$/, 'metrics'],
  [/ControlService\//, 'guarded'],
  // Another thread answers, which checks the caller.
  [/^\/\*$/, 'open'],
];

export function findRouteAccess({ path }: CalledMethod): Requirement {
  return REQUIREMENTS.find(([pattern]) => pattern.test(path))?.[1] ?? 'tables';
}
