#!/usr/bin/env node
/** The cube-cli command. */
import { run } from './cli.ts';

process.exitCode = await run();
