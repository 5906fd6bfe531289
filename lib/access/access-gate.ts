/**
 * The one place where callers are authenticated and limited. Every protocol calls `admit` with the
 * head of a request, before its body is read, and `end` of the grant when the response is sent.
 */
import { CubeError } from '../core/errors.ts';
import type { AddressRules } from './address-rules.ts';
import type { AuditLog } from './audit-log.ts';
import { type CalledMethod, type CallerHead, readApiKey } from './caller.ts';
import type { AccessClock, KeyStore } from './key-store.ts';
import type { KeyUsage } from './key-usage.ts';
import { Principal, UNRESTRICTED } from './principal.ts';
import { ALL_SCOPES, checkScope, GrantedScopes, type Scope } from './scopes.ts';
import type { UsageTable } from './usage-table.ts';

/**
 * What a method needs. `open`: nothing. `guarded`: its handler checks the caller itself, because
 * control calls accept other credentials too (ControlAccess).
 */
export type Requirement = Scope | 'open' | 'guarded';

export type FindRequirement = (method: CalledMethod) => Requirement;

export interface AccessGateOptions {
  /** Absent: there are no API keys, and every caller is anonymous. */
  readonly keys?: KeyStore | undefined;
  /** The scopes of callers without a key. Default: all without a key file, none with one. */
  readonly anonymousScopes?: readonly string[] | undefined;
  /** The scopes of trusted client certificates. Default: all. */
  readonly certificateScopes?: readonly string[] | undefined;
  readonly findRequirement: FindRequirement;
  readonly usage: UsageTable;
  readonly addresses?: AddressRules | undefined;
  readonly audit?: AuditLog | undefined;
  readonly clock: AccessClock;
}

/** An admitted request, or a stream of them. */
export interface CallGrant {
  readonly principal: Principal;
  /**
   * Checks the caller again, in a call that lasts: its key may have been revoked since.
   * @throws CubeError UNAUTHENTICATED, DENIED
   */
  check(): void;
  /**
   * Admits a further message of a stream, which is a request of its own.
   * @throws CubeError UNAUTHENTICATED, DENIED, RATE_LIMITED
   */
  next(): void;
  /** Call once, when the response is sent or will never be. */
  end(): void;
}

/** What callers without a credential may do where there are no keys; control has its own rules. */
const OPEN_SCOPES = ['predict', 'metrics', 'tables'];

const REQUIREMENTS_MAX = 1000;

const nothing = (): void => undefined;

/** The grant of a request that needs no credential. */
const UNRESTRICTED_GRANT: CallGrant = {
  principal: UNRESTRICTED,
  check: nothing,
  next: nothing,
  end: nothing,
};

/** One text for unknown, revoked and expired keys: it must not help to guess. */
const INVALID_KEY = 'the API key is not valid; ask the operator of this server for a key';

export class AccessGate {
  readonly #options: AccessGateOptions;
  readonly #anonymous: Principal;
  readonly #certificateScopes: GrantedScopes;
  readonly #requirements = new Map<string, Requirement>();

  constructor(options: AccessGateOptions) {
    this.#options = options;
    const { keys, anonymousScopes, certificateScopes } = options;
    const scopes = anonymousScopes ?? (keys === undefined ? OPEN_SCOPES : []);
    for (const scope of [...scopes, ...(certificateScopes ?? [])]) checkScope(scope);
    this.#anonymous = new Principal('anonymous', 'anonymous', new GrantedScopes(scopes));
    this.#certificateScopes =
      certificateScopes === undefined ? ALL_SCOPES : new GrantedScopes(certificateScopes);
  }

  /** Whether there is a key file. */
  get hasKeys(): boolean {
    return this.#options.keys !== undefined;
  }

  /** Whether any request may be refused: without keys and rules, servers need no gate. */
  get isRestrictive(): boolean {
    const { keys, anonymousScopes, certificateScopes, addresses } = this.#options;
    return [keys, anonymousScopes, certificateScopes, addresses].some((each) => each !== undefined);
  }

  get anonymousScopes(): readonly string[] {
    return this.#anonymous.scopes.names;
  }

  /** A valid key, for calls that `guarded` methods check themselves; undefined: it is not valid. */
  findKey(text: string): { readonly id: string; includes(scope: Scope): boolean } | undefined {
    const { keys, usage } = this.#options;
    const key = keys?.find(text).key;
    if (key === undefined) return undefined;
    const { id, scopes } = usage.getPrincipal(key);
    return { id, includes: (scope) => scopes.includes(scope) };
  }

  /** Whether a trusted client certificate has the scope. */
  certificateIncludes(scope: Scope): boolean {
    return this.#certificateScopes.includes(scope);
  }

  /** Whether connections of this address are refused before they send anything. */
  refusesPeer(address: string | undefined): boolean {
    return this.#options.addresses?.refusesPeer(address) ?? false;
  }

  /** The address of a caller, behind trusted proxies the client's; undefined: not known. */
  findClient(head: Pick<CallerHead, 'peerAddress' | 'forwardedFor'>): string | undefined {
    const { peerAddress, forwardedFor } = head;
    const { addresses } = this.#options;
    return addresses === undefined ? peerAddress : addresses.findClient(peerAddress, forwardedFor);
  }

  /**
   * Admits a request by its head.
   * @throws CubeError UNAUTHENTICATED without a valid key, DENIED, RATE_LIMITED
   */
  admit(head: CallerHead, method: CalledMethod): CallGrant {
    const requirement = this.#findRequirement(method);
    const address = this.#findAddress(head, method);
    if (requirement === 'open' || requirement === 'guarded') return UNRESTRICTED_GRANT;
    const authorize = (): Principal => this.#authorize(head, { address, method, requirement });
    const grant = new CheckedGrant(authorize);
    grant.principal.usage?.enter();
    return grant;
  }

  /** @throws CubeError UNAUTHENTICATED, DENIED */
  #authorize(
    head: CallerHead,
    {
      address,
      method,
      requirement,
    }: { address: string | undefined; method: CalledMethod; requirement: Scope },
  ): Principal {
    const principal = this.#authenticate(head, address, method);
    if (principal.scopes.includes(requirement)) return principal;
    const error = createScopeError(principal, requirement);
    this.#record(head, address, method, error, principal.id);
    throw error;
  }

  /** The routes of a process are few; unknown paths, which callers choose, are not remembered. */
  #findRequirement(method: CalledMethod): Requirement {
    const name = `${method.verb} ${method.path}`;
    const known = this.#requirements.get(name);
    if (known !== undefined) return known;
    const requirement = this.#options.findRequirement(method);
    if (this.#requirements.size < REQUIREMENTS_MAX) this.#requirements.set(name, requirement);
    return requirement;
  }

  /** @throws CubeError UNAUTHENTICATED */
  #authenticate(head: CallerHead, address: string | undefined, method: CalledMethod): Principal {
    const { keys, usage, clock } = this.#options;
    const text = keys === undefined ? undefined : readApiKey(head);
    if (keys !== undefined && text !== undefined) {
      const { key, refusedId } = keys.find(text);
      if (key !== undefined) return usage.getPrincipal(key);
      const error = createAuthenticationError(INVALID_KEY);
      this.#record(head, address, method, error, refusedId);
      throw error;
    }
    const { certificate } = head;
    if (certificate === undefined || certificate.fault !== undefined) return this.#anonymous;
    // A connection may outlive its certificate.
    if (certificate.validUntilMs < clock.wallMs()) return this.#anonymous;
    return new Principal('certificate', certificate.subject, this.#certificateScopes);
  }

  /** @throws CubeError DENIED for a client address that is not allowed */
  #findAddress(head: CallerHead, method: CalledMethod): string | undefined {
    const { addresses } = this.#options;
    const address = this.findClient(head);
    if (addresses === undefined) return address;
    if (addresses.allows(address)) return address;
    const error = withoutStack('DENIED', 'requests from this address are not allowed');
    this.#record(head, address, method, error);
    throw error;
  }

  #record(
    { certificate }: CallerHead,
    address: string | undefined,
    { protocol, verb, path }: CalledMethod,
    { code, message }: CubeError,
    key?: string,
  ): void {
    this.#options.audit?.recordRefusal({
      action: verb === '' ? path : `${verb} ${path}`,
      protocol,
      address,
      key,
      certificate: certificate?.subject,
      result: code,
      reason: message,
    });
  }
}

class CheckedGrant implements CallGrant {
  principal: Principal;
  readonly #authorize: () => Principal;
  readonly #usage: KeyUsage | undefined;

  constructor(authorize: () => Principal) {
    this.#authorize = authorize;
    this.principal = authorize();
    this.#usage = this.principal.usage;
  }

  check(): void {
    this.principal = this.#authorize();
  }

  next(): void {
    this.check();
    this.principal.usage?.takeRequest();
  }

  end(): void {
    this.#usage?.leave();
  }
}

function createScopeError(principal: Principal, scope: Scope): CubeError {
  if (principal.kind !== 'anonymous') {
    return withoutStack('DENIED', `${principal.describe()} lacks the scope ${scope}`);
  }
  const text = `this call needs an API key with the scope ${scope}`;
  return createAuthenticationError(
    `${text}: send "Authorization: Bearer <key>" or "x-api-key: <key>"`,
  );
}

function createAuthenticationError(message: string): CubeError {
  return withoutStack('UNAUTHENTICATED', message);
}

/** A stack costs more than the rest of a refusal. */
function withoutStack(code: 'UNAUTHENTICATED' | 'DENIED', message: string): CubeError {
  const { stackTraceLimit } = Error;
  Error.stackTraceLimit = 0;
  try {
    return new CubeError(code, message);
  } finally {
    Error.stackTraceLimit = stackTraceLimit;
  }
}
