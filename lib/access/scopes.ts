/**
 * Scopes: what a caller may do. A scope names an area (`predict`, `control`), or one part of it
 * (`predict:ctr-dnn`, `control:stage`). A granted area includes all of its parts.
 */
import { CubeError } from '../core/errors.ts';
import { NAME_PATTERN, NAME_RULE } from '../core/names.ts';

/** The control actions that can be granted separately. */
const CONTROL_VERBS = [
  /** Load and unload versions and models. */
  'stage',
  'activate',
  'rollback',
  'quarantine',
  /** Take a server out of service and back. */
  'drain',
] as const;
export type ControlVerb = (typeof CONTROL_VERBS)[number];

const AREAS = ['predict', 'metrics', 'tables', 'control'] as const;

/** What a request needs. Per-model scopes are checked once the model is known. */
export type Scope = (typeof AREAS)[number] | `control:${ControlVerb}`;

const SCOPE_RULE =
  'predict, predict:<model>, metrics, tables, control, or ' +
  CONTROL_VERBS.map((verb) => `control:${verb}`).join(', ');

/** @throws CubeError INVALID_ARGUMENT */
export function checkScope(text: string): string {
  const [area = '', part] = splitScope(text);
  if (AREAS.some((known) => known === area)) {
    if (part === undefined) return text;
    if (area === 'control' && CONTROL_VERBS.some((verb) => verb === part)) return text;
    if (area === 'predict' && NAME_PATTERN.test(part)) return text;
  }
  const shown = JSON.stringify(text.slice(0, 100));
  throw new CubeError(
    'INVALID_ARGUMENT',
    `unknown scope ${shown}: expected ${SCOPE_RULE}; a model is ${NAME_RULE}`,
  );
}

function splitScope(text: string): [area: string, part: string | undefined] {
  const colon = text.indexOf(':');
  return colon < 0 ? [text, undefined] : [text.slice(0, colon), text.slice(colon + 1)];
}

/** The scopes of a caller, as sets for fast checks. */
export class GrantedScopes {
  readonly names: readonly string[];
  readonly #names: ReadonlySet<string>;
  readonly #models: boolean;

  constructor(names: readonly string[]) {
    this.names = names;
    this.#names = new Set(names);
    this.#models = names.some((name) => name.startsWith('predict:'));
  }

  /** Whether the scope is granted, or for `predict` at least one model is. */
  includes(scope: Scope): boolean {
    if (this.#names.has(scope)) return true;
    if (scope === 'predict') return this.#models;
    return scope.startsWith('control:') && this.#names.has('control');
  }

  includesModel(model: string): boolean {
    return this.#names.has('predict') || this.#names.has(`predict:${model}`);
  }
}

/** All areas: what a trusted certificate, or everybody without a key file, may do. */
export const ALL_SCOPES: GrantedScopes = new GrantedScopes(AREAS);
