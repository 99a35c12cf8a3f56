"""A pool's recorded requests played through fleets of other sizes, beside what its hit curve says of these.

confirmations   advice that was simulated with a pool's latest requests
fleet_outlines  keeps what outlines of fleets of other sizes say, which corrects the curve
"""
