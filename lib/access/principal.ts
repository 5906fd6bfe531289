/** Who calls, once authenticated: everything after authentication asks only the principal. */
import { CubeError } from '../core/errors.ts';
import type { KeyUsage } from './key-usage.ts';
import { ALL_SCOPES, type GrantedScopes } from './scopes.ts';

/** The priority of requests that name none. */
const DEFAULT_PRIORITY = 1;

export class Principal {
  readonly kind: 'anonymous' | 'key' | 'certificate';
  /** The id of the key, the subject of the certificate, or `anonymous`. */
  readonly id: string;
  readonly scopes: GrantedScopes;
  /** Absent: no limits apply. */
  readonly usage: KeyUsage | undefined;

  constructor(kind: Principal['kind'], id: string, scopes: GrantedScopes, usage?: KeyUsage) {
    this.kind = kind;
    this.id = id;
    this.scopes = scopes;
    this.usage = usage;
  }

  /** The share of the capacity under overload, relative to other principals. */
  get weight(): number {
    return this.usage?.limits.weight ?? 1;
  }

  /** @throws CubeError DENIED */
  checkModel(model: string): void {
    if (this.scopes.includesModel(model)) return;
    throw new CubeError(
      'DENIED',
      `${this.describe()} may not use model ${model}: its scopes lack predict:${model}`,
    );
  }

  /** @throws CubeError TOO_LARGE, RATE_LIMITED */
  takeRows(rowCount: number): void {
    this.usage?.takeRows(rowCount);
  }

  /**
   * Lowers a priority to the highest that the principal may use.
   * @param priority 0 is the highest; undefined: the default
   */
  limitPriority(priority: number | undefined): number | undefined {
    const highest = this.usage?.limits.highestPriority;
    if (highest === undefined) return priority;
    return Math.max(priority ?? DEFAULT_PRIORITY, highest);
  }

  describe(): string {
    return this.kind === 'anonymous' ? 'a caller without an API key' : `${this.kind} ${this.id}`;
  }
}

/** Everybody where nothing is configured. */
export const UNRESTRICTED: Principal = new Principal('anonymous', 'anonymous', ALL_SCOPES);
