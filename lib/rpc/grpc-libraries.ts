/**
 * The gRPC packages, loaded at their first use: a plain start does not need them, and they are a
 * third of its modules.
 */
import { createRequire } from 'node:module';
import type * as GrpcJs from '@grpc/grpc-js';
import type * as ProtoLoader from '@grpc/proto-loader';
import type * as GrpcReflection from '@grpc/reflection';
import type * as GrpcHealthCheck from 'grpc-health-check';

interface GrpcLibraries {
  readonly '@grpc/grpc-js': typeof GrpcJs;
  readonly '@grpc/proto-loader': typeof ProtoLoader;
  readonly '@grpc/reflection': typeof GrpcReflection;
  readonly 'grpc-health-check': typeof GrpcHealthCheck;
}

export const GRPC_LIBRARIES: readonly (keyof GrpcLibraries)[] = [
  '@grpc/grpc-js',
  '@grpc/proto-loader',
  '@grpc/reflection',
  'grpc-health-check',
];

const load = createRequire(import.meta.url);

/** Takes up to a tenth of a second of CPU the first time, and nothing afterwards. */
export function loadGrpcLibrary<Name extends keyof GrpcLibraries>(name: Name): GrpcLibraries[Name] {
  return load(name) as GrpcLibraries[Name];
}

/** A service of a .proto file, read at the first call of the returned function. */
export function defineGrpcService(
  path: string,
  service: string,
  options: ProtoLoader.Options,
): () => ProtoLoader.ServiceDefinition {
  let definition: ProtoLoader.ServiceDefinition | undefined;
  return () => {
    definition ??= loadGrpcLibrary('@grpc/proto-loader').loadSync(path, options)[
      service
    ] as ProtoLoader.ServiceDefinition;
    return definition;
  };
}
