"""Traffic played through the real decisions in virtual time: what another policy, budget or number of workers gives.

__main__             the process of one simulation
fleet_model          a live pool as a modelled fleet
fleet_setup          the modelled fleet: workers, blocks, rates
job_stream           a job on its way to its process
placement            which worker a request is sent to: a decision, or another policy
run_result           what a run gave, request by request; the error of one that is not sound
simulate             plays a job's requests through its scenarios
simulated_blocks     the block pool of an engine, by block keys
simulated_fleet      the live state over modelled workers
simulated_run        requests through one scenario, in virtual time
simulated_scheduler  the scheduler of an engine
simulated_worker     an engine and the frames its agent would send
simulation_job       what a simulation is given, and the figures it finds
simulator            runs simulations, each in a process of its own
workload             requests from records or from a trace
"""
