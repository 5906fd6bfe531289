/** The connections of a `ServiceClient` to one server, over each of its protocols. */
import { CubeError } from '../core/errors.ts';
import type { CallResult } from '../rpc/channel.ts';
import type { Credentials } from '../rpc/credentials.ts';
import { type Connections, type ConnectionType, openConnections } from './connections.ts';
import { GrpcConnections } from './grpc-connections.ts';
import { HttpConnections } from './http-connections.ts';

export type ServiceProtocol = 'baidu_std' | 'grpc' | 'http';

export interface ServiceTransport {
  /** Default single. gRPC always shares one connection; over HTTP `single` is `pooled`. */
  readonly connectionType?: ConnectionType;
  /** Milliseconds until a connection attempt fails; not over gRPC. Default 1000. */
  readonly connectTimeoutMs?: number;
  /** Idle connections kept for later calls, for `pooled`. Default 100. */
  readonly idleConnectionsMax?: number;
  /** 0 none, 1 snappy, 2 gzip, 3 zlib, 4 LZ4; over gRPC and HTTP none or gzip. Default 0. */
  readonly compressType?: CompressType;
  /** API key of every call, and whether connections use TLS. Default: neither. */
  readonly credentials?: Credentials | undefined;
  /** Maximum size of messages over gRPC. Default 256 MiB. */
  readonly messageBytesMax?: number;
  /** The trailer whose value is the attachment of responses over gRPC. Default: none. */
  readonly trailer?: string;
}

export type CompressType = 0 | 1 | 2 | 3 | 4;

const NO_BYTES = new Uint8Array(0);
const BACKOFF_MAX_MS = 1_000;

/** @param probeMethod any answer to it shows that the server is healthy */
export function openServiceConnections(
  endpoint: string,
  protocol: ServiceProtocol,
  probeMethod: string,
  transport: ServiceTransport,
): Connections {
  return new ProbedConnections(open(endpoint, protocol, transport), probeMethod);
}

function open(
  endpoint: string,
  protocol: ServiceProtocol,
  { connectionType = 'single', compressType = 0, credentials, ...given }: ServiceTransport,
): Connections {
  const limits = { ...given, backoffMaxMs: BACKOFF_MAX_MS };
  switch (protocol) {
    case 'grpc':
      return new GrpcConnections(endpoint, { ...given, compressType, credentials });
    case 'http':
      return new HttpConnections(endpoint, connectionType, limits, credentials);
    case 'baidu_std':
      return openConnections(endpoint, connectionType, limits, credentials);
  }
}

/** A server that answers a probe is healthy, whatever it answers. */
class ProbedConnections implements Connections {
  readonly #inner: Connections;
  readonly #probeMethod: string;

  constructor(inner: Connections, probeMethod: string) {
    this.#inner = inner;
    this.#probeMethod = probeMethod;
  }

  async call(...call: Parameters<Connections['call']>): Promise<CallResult> {
    const [, method] = call;
    if (method !== this.#probeMethod) return this.#inner.call(...call);
    try {
      return await this.#inner.call(...call);
    } catch (error) {
      const { code } = CubeError.from(error);
      if (code === 'UNAVAILABLE' || code === 'DEADLINE_EXCEEDED') throw error;
      return { payload: NO_BYTES, attachment: NO_BYTES };
    }
  }

  close(): void {
    this.#inner.close();
  }
}
